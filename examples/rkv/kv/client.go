package kv

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/verbs"
)

// Errors of lookups and updates.
var (
	ErrNotFound = errors.New("rkv: no such key")
	ErrFull     = errors.New("rkv: the table has no slot for the key")
	ErrTooLong  = errors.New("rkv: the key and the value are longer than a slot")
)

var statusErrors = map[status]error{
	statusOK: nil, statusNotFound: ErrNotFound, statusFull: ErrFull, statusTooLong: ErrTooLong,
	statusBadRequest: errors.New("rkv: the server does not know the request"),
}

// timeout is how long a call waits, at most.
const timeout = 20 * time.Second

// Client is a connection to a [Server]. One call is carried out at a time. An error that is
// none of the above is permanent.
type Client struct {
	mu   sync.Mutex
	conn *verbs.Conn
	qp   *verbs.QP
	cq   *verbs.CQ
	mr   *verbs.MR // a slot, a request and a reply
	info info

	read   []verbs.SendWR
	piece  [1]verbs.SGE
	wcs    [4]verbs.WC
	torn   atomic.Uint64
	failed error
}

// Dial connects to a server.
func Dial(ctx context.Context, c *verbs.Context, server netip.AddrPort) (*Client, error) {
	k := &Client{}
	pd := c.AllocPD()
	var err error
	if k.cq, err = c.CreateCQ(16, nil); err != nil {
		return nil, err
	}
	k.qp, err = c.CreateQP(pd, verbs.QPInit{Type: verbs.RC, SendCQ: k.cq, RecvCQ: k.cq,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err == nil {
		err = k.qp.Init(verbs.AccessRemoteWrite) // for the server's probes; no memory is registered for it
	}
	if err == nil {
		k.conn, err = c.Dial(ctx, server, k.qp, &verbs.ConnParam{InitiatorDepth: 1, RetryCount: 4, RNRRetryCount: 7})
	}
	if err == nil {
		k.info, err = parseInfo(k.conn.Private())
	}
	if err == nil {
		k.mr, err = pd.RegMR(make([]byte, k.info.slotSize+requestHeader+k.info.slotSize+1), verbs.AccessLocalWrite)
	}
	if err != nil {
		k.Close()
		return nil, fmt.Errorf("rkv: %w", err)
	}
	k.piece[0] = k.mr.SGE(0, k.info.slotSize)
	k.read = []verbs.SendWR{{Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled, SGList: k.piece[:], RKey: k.info.rkey}}
	return k, nil
}

// Close disconnects.
func (k *Client) Close() error {
	if k.qp != nil {
		k.qp.Close()
	}
	if k.mr != nil {
		k.mr.Close()
	}
	return k.cq.Close()
}

// Torn is how many READs were repeated because the entry was changed while it was read.
func (k *Client) Torn() uint64 { return k.torn.Load() }

// Get looks a key up by READs, and appends its value to value.
func (k *Client) Get(key string, value []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var deadline time.Time
	return lookup(key, value, k.info.slots, &k.torn, func(slot int) ([]byte, error) {
		if deadline.IsZero() {
			deadline = time.Now().Add(timeout)
		} else if time.Now().After(deadline) {
			return nil, errors.New("rkv: the entry is never whole")
		}
		k.read[0].RemoteAddr = k.info.addr + uint64(slot)*uint64(k.info.slotSize)
		if err := k.run(deadline, 1, k.read); err != nil {
			return nil, err
		}
		return k.mr.Bytes()[:k.info.slotSize], nil
	})
}

// Put changes the value of a key. When it returns, every lookup finds the value.
func (k *Client) Put(key string, value []byte) error {
	return k.change(putRequest, key, value)
}

// Delete removes a key.
func (k *Client) Delete(key string) error { return k.change(deleteRequest, key, nil) }

func (k *Client) change(kind byte, key string, value []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(key)+len(value) > k.info.slotSize-overhead || len(key) >= 1<<16 {
		return ErrTooLong
	}
	at, end := k.info.slotSize, len(k.mr.Bytes())-1
	n := len(appendRequest(k.mr.Bytes()[at:at:end], kind, key, value))
	if k.failed == nil {
		_, k.failed = k.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{k.mr.SGE(end, 1)}})
	}
	send := verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{k.mr.SGE(at, n)}}
	if err := k.run(time.Now().Add(timeout), 2, []verbs.SendWR{send}); err != nil {
		return err
	}
	return statusErrors[status(k.mr.Bytes()[end])]
}

// run posts work requests, and waits for n completions.
func (k *Client) run(deadline time.Time, n int, wrs []verbs.SendWR) error {
	if k.failed == nil {
		_, k.failed = k.qp.PostSend(wrs...)
	}
	for n > 0 && k.failed == nil {
		got, err := k.cq.Wait(k.wcs[:], deadline)
		k.failed = err
		for _, wc := range k.wcs[:got] {
			if wc.Status != verbs.StatusSuccess {
				k.failed = fmt.Errorf("rkv: %v: %v", k.conn.Peer(), wc.Status)
				break
			}
		}
		n -= got
	}
	return k.failed
}

// lookup appends the value of a key. read copies a slot; again counts the copies that were torn.
func lookup(key string, value []byte, slots int, again *atomic.Uint64, read func(slot int) ([]byte, error)) ([]byte, error) {
	for i := 0; i < Probes; {
		slot, err := read(slotOf(key, i, slots))
		if err != nil {
			return value, err
		}
		k, v, s := parse(slot)
		switch {
		case s == torn:
			again.Add(1)
			continue
		case s == unused:
			return value, ErrNotFound
		case s == present && string(k) == key:
			return append(value, v...), nil
		}
		i++
	}
	return value, ErrNotFound
}
