package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/verbs"
)

// Config configures a [Server]. 0 means the default.
type Config struct {
	Port       uint16        // of the connection manager; default: a free one
	Slots      int           // of the table; default 65536
	SlotSize   int           // bytes, a multiple of 8: 32, the key and the value; default 256
	MaxClients int           // at a time; default 256
	KeepAlive  time.Duration // how often a client is probed; default 5 s
}

// Server has the table, and executes the requests that change it.
type Server struct {
	ctx      *verbs.Context
	pd       *verbs.PD
	cfg      Config
	table    table
	listener *verbs.Listener
	channel  *verbs.CompChannel
	cq       *verbs.CQ

	mu sync.Mutex
	// +checklocks:mu
	clients map[uint32]*session // by the number of the queue pair
}

// session is a client's connection at the server.
type session struct {
	qp     *verbs.QP
	mr     *verbs.MR // a request
	list   [1]verbs.SGE
	probed bool // a probe is not answered
}

// Work requests of a session.
const (
	wrRequest = iota
	wrReply
	wrProbe
)

const sessionWRs = 4 // sends of a session at a time: probes, and replies that are not acknowledged

// NewServer makes an empty table and listens.
func NewServer(c *verbs.Context, cfg Config) (*Server, error) {
	cfg.Slots, cfg.SlotSize = cmp.Or(cfg.Slots, 65536), cmp.Or(cfg.SlotSize, 256)
	cfg.MaxClients, cfg.KeepAlive = cmp.Or(cfg.MaxClients, 256), cmp.Or(cfg.KeepAlive, 5*time.Second)
	if !validSlots(cfg.Slots, cfg.SlotSize) {
		return nil, fmt.Errorf("rkv: %d slots of %d bytes: a slot has %d to %d bytes, a multiple of 8", cfg.Slots, cfg.SlotSize, overhead+8, maxSlot)
	}
	s := &Server{ctx: c, pd: c.AllocPD(), cfg: cfg, channel: c.CreateCompChannel(), clients: make(map[uint32]*session)}
	mr, err := s.pd.RegMR(make([]byte, cfg.Slots*cfg.SlotSize), verbs.AccessRemoteRead)
	if err != nil {
		return nil, err
	}
	s.table = table{mr: mr, slots: cfg.Slots, slotSize: cfg.SlotSize, next: make([]byte, cfg.SlotSize)}
	if s.cq, err = c.CreateCQ(cfg.MaxClients*(sessionWRs+1), s.channel); err != nil {
		return nil, err
	}
	s.listener, err = c.Listen(cfg.Port, cfg.MaxClients)
	return s, err
}

// Addr is the address for [Dial].
func (s *Server) Addr() netip.AddrPort { return s.listener.Addr() }

// Clients is the number of clients that are connected, or being connected.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

// Serve accepts clients and executes their requests until ctx ends. Then it disconnects all.
func (s *Server) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(s.accept(ctx, &wg)) })
	wg.Go(func() { s.probe(ctx) })
	err := s.work(ctx)
	cancel(err)
	s.listener.Close()
	wg.Wait()
	for _, c := range s.all() {
		s.drop(c)
	}
	return err
}

func (s *Server) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*session, 0, len(s.clients))
	for _, c := range s.clients {
		all = append(all, c)
	}
	return all
}

// accept takes connection requests.
func (s *Server) accept(ctx context.Context, wg *sync.WaitGroup) error {
	for {
		r, err := s.listener.Accept(ctx)
		if err != nil {
			return err
		}
		c, err := s.add()
		if err != nil {
			r.Reject([]byte(err.Error()))
			continue
		}
		wg.Go(func() { // until the client has confirmed
			table := info{s.table.mr.Addr(), s.table.mr.RKey(), s.table.slots, s.table.slotSize}
			param := verbs.DefaultConnParam()
			param.PrivateData = table.append(nil)
			conn, err := r.Accept(ctx, c.qp, &param)
			if err == nil {
				err = conn.Established(ctx)
			}
			if err != nil {
				s.drop(c)
			}
		})
	}
}

// add makes a session, which is ready for its first request.
func (s *Server) add() (c *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) >= s.cfg.MaxClients {
		return nil, errors.New("too many clients")
	}
	c = &session{}
	if c.mr, err = s.pd.RegMR(make([]byte, requestHeader+s.cfg.SlotSize), verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	c.list[0] = c.mr.SGE(0, len(c.mr.Bytes()))
	c.qp, err = s.ctx.CreateQP(s.pd, verbs.QPInit{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: sessionWRs, MaxRecvWR: 1, MaxRecvSGE: 1, MaxInlineData: 1}})
	if err == nil {
		s.clients[c.qp.Num()] = c
		if err = c.qp.Init(verbs.AccessRemoteRead); err == nil {
			err = c.receive()
		}
	}
	if err != nil {
		s.release(c)
		return nil, err
	}
	return c, nil
}

func (c *session) receive() error {
	_, err := c.qp.PostRecv(verbs.RecvWR{WRID: wrRequest, SGList: c.list[:]})
	return err
}

// drop disconnects a client.
func (s *Server) drop(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(c)
}

// release destroys the connection of a client. s.mu is held.
//
// +checklocks:s.mu
func (s *Server) release(c *session) {
	if c.qp != nil {
		if s.clients[c.qp.Num()] != c {
			return
		}
		delete(s.clients, c.qp.Num())
		c.qp.Close()
	}
	c.mr.Close()
}

// work handles completions. Those of a client that has ended, in any way, are errors.
func (s *Server) work(ctx context.Context) error {
	wcs := make([]verbs.WC, 64)
	for ctx.Err() == nil {
		n := s.cq.Poll(wcs)
		if n == 0 {
			s.cq.ReqNotify(false)
			if n = s.cq.Poll(wcs); n == 0 {
				if _, err := s.channel.Get(ctx); err != nil {
					return err
				}
				continue
			}
		}
		for i := range wcs[:n] {
			s.complete(&wcs[i])
		}
	}
	return context.Cause(ctx)
}

func (s *Server) complete(wc *verbs.WC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[wc.QPNum]
	switch {
	case c == nil: // has been dropped
	case wc.Status != verbs.StatusSuccess:
		s.release(c)
	case wc.WRID == wrProbe:
		c.probed = false
	case wc.WRID == wrRequest:
		reply := verbs.SendWR{WRID: wrReply, Opcode: verbs.WRSend, Flags: verbs.SendInline, Inline: []byte{byte(s.execute(c.mr.Bytes()[:wc.ByteLen]))}}
		err := c.receive()
		if err == nil {
			_, err = c.qp.PostSend(reply)
		}
		if err != nil { // a client that takes no replies fills the queue
			s.release(c)
		}
	}
}

func (s *Server) execute(request []byte) status {
	kind, key, value, ok := parseRequest(request)
	switch {
	case !ok || kind > deleteRequest:
		return statusBadRequest
	case !s.table.fits(key, value):
		return statusTooLong
	case kind == putRequest && !s.table.put(key, value):
		return statusFull
	case kind == deleteRequest && !s.table.remove(key):
		return statusNotFound
	}
	return statusOK
}

// probe sends every client a WRITE of no bytes in each keep-alive interval. The acknowledgment comes from
// the client's engine. Without one, the probe ends with an error, and the client is dropped.
func (s *Server) probe(ctx context.Context) {
	tick := time.NewTicker(s.cfg.KeepAlive)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		for _, c := range s.clients {
			if !c.probed && c.qp.State() == verbs.StateRTS {
				_, err := c.qp.PostSend(verbs.SendWR{WRID: wrProbe, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled})
				c.probed = err == nil
			}
		}
		s.mu.Unlock()
	}
}

// Get looks a key up in the process that has the table, and appends its value. It may be called
// from any goroutine.
func (s *Server) Get(key string, value []byte) ([]byte, error) {
	slot := make([]byte, s.table.slotSize)
	return lookup(key, value, s.table.slots, new(atomic.Uint64), func(i int) ([]byte, error) {
		s.table.load(i, slot)
		return slot, nil
	})
}
