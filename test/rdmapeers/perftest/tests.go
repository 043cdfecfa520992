//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/unet-go/unet/verbs"
)

// post posts an operation of the data's queue pair on what is sent.
func (p *peer) post(op verbs.WROpcode, size int) error {
	wr := verbs.SendWR{Opcode: op, SGList: []verbs.SGE{p.mr.SGE(0, size)}, RemoteAddr: p.them.vaddr, RKey: p.them.rkey}
	if op == verbs.WRAtomicFetchAndAdd {
		wr.CompareAdd = 1
	}
	_, err := p.qp.PostSend(wr)
	return err
}

// complete returns when n operations of a queue have completed.
func complete(cq *verbs.CQ, n int) error {
	wcs := make([]verbs.WC, depth)
	for n > 0 {
		k, err := cq.Wait(wcs[:min(n, depth)], time.Time{})
		if err != nil {
			return err
		}
		for _, wc := range wcs[:k] {
			if wc.Status != verbs.StatusSuccess {
				return fmt.Errorf("completion: %v", wc.Status)
			}
		}
		n -= k
	}
	return nil
}

// writeLat has both sides WRITE in turns, the server first, each when the last byte in its memory
// says that the other's has come.
func (p *peer) writeLat() error {
	sent := 0
	write := func() error {
		sent++
		p.mr.Bytes()[p.size-1] = byte(sent)
		if err := p.post(verbs.WRRDMAWrite, p.size); err != nil {
			return err
		}
		return complete(p.send, 1)
	}
	at := p.half + p.size - 1
	word := p.mr.Word(at &^ 7)
	last := func() byte {
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], word.Load())
		return b[at&7]
	}
	for came := 1; came <= p.n; came++ {
		if !p.client {
			if err := write(); err != nil {
				return err
			}
		}
		for last() != byte(came) {
			p.ctx.Poll()
			if p.qp.State() != verbs.StateRTS {
				return fmt.Errorf("WRITE %d has not come, and the queue pair is in %v", came, p.qp.State())
			}
		}
		if p.client {
			if err := write(); err != nil {
				return err
			}
		}
	}
	return nil
}

// readLat has the client READ.
func (p *peer) readLat() error {
	for i := 0; p.client && i < p.n; i++ {
		if err := p.post(verbs.WRRDMARead, p.size); err != nil {
			return err
		}
		if err := complete(p.send, 1); err != nil {
			return err
		}
	}
	return p.comm.finish(p.own)
}

// atomicLat has the client add. Each addition is done once.
func (p *peer) atomicLat() error {
	word := p.mr.Bytes()
	for i, first := 0, uint64(0); p.client && i < p.n; i++ {
		if err := p.post(verbs.WRAtomicFetchAndAdd, 8); err != nil {
			return err
		}
		if err := complete(p.send, 1); err != nil {
			return err
		}
		got := binary.NativeEndian.Uint64(word)
		if i == 0 {
			first = got
		}
		if got != first+uint64(i) {
			return fmt.Errorf("FETCH_ADD %d returned %d, the first one %d", i, got, first)
		}
	}
	if err := p.comm.finish(p.own); err != nil || p.client {
		return err
	}
	if got := binary.NativeEndian.Uint64(word[p.half:]); got != uint64(p.n) {
		return fmt.Errorf("the word that %d were added to is %d", p.n, got)
	}
	return nil
}

// sendBW has the client send.
func (p *peer) sendBW() error {
	if p.client {
		if err := p.shake(1); err != nil { // the server has posted receives
			return err
		}
		if err := p.stream(verbs.WRSend); err != nil {
			return err
		}
		return p.comm.finish(p.own)
	}
	post := func(n int) error {
		for range n {
			if _, err := p.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{p.mr.SGE(p.half, p.size)}}); err != nil {
				return err
			}
		}
		return nil
	}
	posted := min(p.n, depth)
	if err := post(posted); err != nil {
		return err
	}
	if err := p.shake(1); err != nil {
		return err
	}
	for came := 0; came < p.n; came++ {
		if err := complete(p.recv, 1); err != nil {
			return err
		}
		if posted < p.n {
			posted++
			if err := post(1); err != nil {
				return err
			}
		}
	}
	return p.comm.finish(p.own)
}

// writeBW has the client WRITE.
func (p *peer) writeBW() error {
	if p.client {
		if err := p.stream(verbs.WRRDMAWrite); err != nil {
			return err
		}
	}
	if err := p.shake(1); err != nil { // the client has ended
		return err
	}
	if err := p.comm.report(); err != nil {
		return err
	}
	return p.comm.finish(p.own)
}

// stream does n operations, depth of them at a time.
func (p *peer) stream(op verbs.WROpcode) error {
	for posted, completed := 0, 0; completed < p.n; completed++ {
		for ; posted < min(p.n, completed+depth); posted++ {
			if err := p.post(op, p.size); err != nil {
				return err
			}
		}
		if err := complete(p.send, 1); err != nil {
			return err
		}
	}
	return nil
}

// messages is a queue pair as a connection: a write is a SEND, a read returns a message.
type messages struct {
	qp         *verbs.QP
	send, recv *verbs.CQ
	mr         *verbs.MR // what is sent, and slots for what comes
	slot       int
}

const slots = 2

func newMessages(pd *verbs.PD, qp *verbs.QP, send, recv *verbs.CQ) (*messages, error) {
	mr, err := pd.RegMR(make([]byte, (1+slots)*structLen), verbs.AccessLocalWrite)
	m := &messages{qp: qp, send: send, recv: recv, mr: mr}
	for i := 0; i < slots && err == nil; i++ {
		err = m.post(i)
	}
	return m, err
}

func (m *messages) post(slot int) error {
	_, err := m.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{m.mr.SGE((1+slot)*structLen, structLen)}})
	return err
}

func (m *messages) Read(b []byte) (int, error) {
	var wc [1]verbs.WC
	if _, err := m.recv.Wait(wc[:], time.Time{}); err != nil {
		return 0, err
	}
	if wc[0].Status != verbs.StatusSuccess {
		return 0, fmt.Errorf("receive: %v", wc[0].Status)
	}
	if int(wc[0].ByteLen) != len(b) {
		return 0, fmt.Errorf("a message of %d bytes, want %d: %w", wc[0].ByteLen, len(b), io.ErrUnexpectedEOF)
	}
	copy(b, m.mr.Bytes()[(1+m.slot)*structLen:])
	err := m.post(m.slot)
	m.slot = (m.slot + 1) % slots
	return len(b), err
}

func (m *messages) Write(b []byte) (int, error) {
	copy(m.mr.Bytes(), b)
	if _, err := m.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{m.mr.SGE(0, len(b))}}); err != nil {
		return 0, err
	}
	return len(b), complete(m.send, 1)
}
