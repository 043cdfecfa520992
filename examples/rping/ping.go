package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/unet-go/unet/verbs"
)

// infoLen is the length of what the client sends, and of the server's answers: where text is, as
// address, key and length.
const infoLen = 8 + 4 + 4

// rping is one side. The client's text and where it comes back, or the server's copy, are
// regions of their own.
type rping struct {
	options
	out        io.Writer
	qp         *verbs.QP
	cq         *verbs.CQ
	conn       *verbs.Conn
	send, recv *verbs.MR
	text       *verbs.MR // client: what is read
	back       *verbs.MR // client: what is written; server: its copy
	received   int       // messages that have come and were not awaited yet
}

// errGone is the end of the connection by the peer.
var errGone = errors.New("disconnected")

func (p *rping) open(c *verbs.Context) (err error) {
	pd := c.AllocPD()
	remote := verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	for _, r := range []struct {
		mr     **verbs.MR
		size   int
		access verbs.Access
	}{{&p.send, infoLen, verbs.AccessLocalWrite}, {&p.recv, infoLen, verbs.AccessLocalWrite}, {&p.text, p.size, remote}, {&p.back, p.size, remote}} {
		if *r.mr, err = pd.RegMR(make([]byte, r.size), r.access); err != nil {
			return err
		}
	}
	if p.cq, err = c.CreateCQ(32, nil); err != nil {
		return err
	}
	p.qp, err = c.CreateQP(pd, verbs.QPInit{
		Type: verbs.RC, SendCQ: p.cq, RecvCQ: p.cq, SqSigAll: true,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	if err := p.qp.Init(remote); err != nil {
		return err
	}
	return p.postRecv()
}

func (p *rping) postRecv() error {
	_, err := p.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{p.recv.SGE(0, infoLen)}})
	return err
}

// do posts a work request and returns when it has completed.
func (p *rping) do(wr verbs.SendWR, completion verbs.WCOpcode) error {
	if _, err := p.qp.PostSend(wr); err != nil {
		return err
	}
	return p.await(completion)
}

// await returns when an operation has completed. It counts messages that come before.
func (p *rping) await(completion verbs.WCOpcode) error {
	var wcs [1]verbs.WC
	for {
		if completion == verbs.WCRecv && p.received > 0 {
			p.received--
			return nil
		}
		if _, err := p.cq.Wait(wcs[:], time.Time{}); err != nil {
			return err
		}
		switch wc := wcs[0]; {
		case wc.Status == verbs.StatusWRFlushErr:
			return errGone
		case wc.Status != verbs.StatusSuccess:
			return fmt.Errorf("completion: %v", wc.Status)
		case wc.Opcode == verbs.WCRecv:
			if wc.ByteLen != infoLen {
				return fmt.Errorf("a message of %d bytes, want %d", wc.ByteLen, infoLen)
			}
			p.received++
		case wc.Opcode == completion:
			return nil
		}
	}
}

// sendInfo sends where a region is.
func (p *rping) sendInfo(mr *verbs.MR) error {
	b := p.send.Bytes()
	binary.BigEndian.PutUint64(b, mr.Addr())
	binary.BigEndian.PutUint32(b[8:], mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(len(mr.Bytes())))
	return p.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{p.send.SGE(0, infoLen)}}, verbs.WCSend)
}

// recvInfo waits for a message and returns what it says.
func (p *rping) recvInfo() (addr uint64, rkey uint32, size int, err error) {
	if err = p.await(verbs.WCRecv); err != nil {
		return
	}
	b := p.recv.Bytes()
	addr, rkey, size = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), int(binary.BigEndian.Uint32(b[12:]))
	return addr, rkey, size, p.postRecv()
}

// fill writes the text of a ping: its number, letters from another one on each time, and a zero.
func fill(b []byte, ping int) {
	n := copy(b, fmt.Sprintf("rdma-ping-%d: ", ping))
	letter := byte('A' + ping%('z'-'A'+1))
	for i := n; i < len(b); i++ {
		b[i] = letter
		if letter++; letter > 'z' {
			letter = 'A'
		}
	}
	b[len(b)-1] = 0
}

// text is a string that ends with a zero.
func text(b []byte) []byte {
	s, _, _ := bytes.Cut(b, []byte{0})
	return s
}

func (p *rping) runClient() error {
	for ping := 0; p.count == 0 || ping < p.count; ping++ {
		fill(p.text.Bytes(), ping)
		for _, mr := range []*verbs.MR{p.text, p.back} {
			if err := p.sendInfo(mr); err != nil {
				return err
			}
			if _, _, _, err := p.recvInfo(); err != nil { // the server has read, or written
				return err
			}
		}
		if p.check && !bytes.Equal(p.text.Bytes(), p.back.Bytes()) {
			return fmt.Errorf("ping %d: %q came back, want %q", ping, p.back.Bytes(), p.text.Bytes())
		}
		if p.verbose {
			fmt.Fprintf(p.out, "ping data: %s\n", text(p.back.Bytes()))
		}
	}
	return nil
}

func (p *rping) runServer() error {
	for {
		err := p.pong()
		if errors.Is(err, errGone) {
			fmt.Fprintln(p.out, "server DISCONNECT EVENT...")
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// pong serves one ping.
func (p *rping) pong() error {
	addr, rkey, size, err := p.recvInfo()
	if err != nil {
		return err
	}
	if size > p.size {
		return fmt.Errorf("the client's text has %d bytes, the buffer %d", size, p.size)
	}
	err = p.do(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{p.back.SGE(0, size)}, RemoteAddr: addr, RKey: rkey}, verbs.WCRDMARead)
	if err != nil {
		return err
	}
	data := text(p.back.Bytes()[:size])
	if p.verbose {
		fmt.Fprintf(p.out, "server ping data: %s\n", data)
	}
	if err := p.sendInfo(p.back); err != nil { // go ahead; the client does not look at it
		return err
	}
	if addr, rkey, _, err = p.recvInfo(); err != nil {
		return err
	}
	err = p.do(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{p.back.SGE(0, min(len(data)+1, size))}, RemoteAddr: addr, RKey: rkey}, verbs.WCRDMAWrite)
	if err != nil {
		return err
	}
	return p.sendInfo(p.back)
}
