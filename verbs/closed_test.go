//go:build linux

package verbs_test

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/verbs"
)

// Each call on an object that is closed, or whose context is, says so.
func TestCallsAfterClose(t *testing.T) {
	of := func(_ any, err error) error { return err }
	type object struct {
		close func() error
		calls map[string]func() error
	}
	type all struct {
		p, other *peer
		srq      *verbs.SRQ
		ch       *verbs.CompChannel
		l        *verbs.Listener
		request  *verbs.Request
		conn     *verbs.Conn
		mr       *verbs.MR
		mw       *verbs.MW
		ah       *verbs.AH
		pd       *verbs.PD
		cq       *verbs.CQ
	}
	objects := map[string]func(*all) object{
		"QP": func(a *all) object {
			q := a.p.qp
			return object{q.Close, map[string]func() error{
				"Close":    q.Close,
				"PostSend": func() error { return of(q.PostSend(verbs.SendWR{Opcode: verbs.WRSend})) },
				"PostRecv": func() error { return of(q.PostRecv(verbs.RecvWR{})) },
				"Modify":   func() error { return q.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.QPState) },
				"Init":     func() error { return q.Init(0) },
				"Connect":  func() error { return q.Connect(a.other.qp.Local()) },
				"Dial":     func() error { return of(a.p.ctx.Dial(t.Context(), a.l.Addr(), q, nil)) },
				"Accept":   func() error { return of(a.request.Accept(t.Context(), q, nil)) },
			}}
		},
		"CQ": func(a *all) object {
			return object{a.cq.Close, map[string]func() error{
				"Wait":  func() error { return of(a.cq.Wait(a.p.wcs[:], time.Time{})) },
				"Close": a.cq.Close,
				"CreateQP": func() error {
					return of(a.p.ctx.CreateQP(a.p.pd, verbs.QPInit{Type: verbs.RC, SendCQ: a.cq, RecvCQ: a.p.cq}))
				},
			}}
		},
		"CompChannel": func(a *all) object {
			return object{a.ch.Close, map[string]func() error{
				"Get":      func() error { return of(a.ch.Get(t.Context())) },
				"Close":    a.ch.Close,
				"CreateCQ": func() error { return of(a.p.ctx.CreateCQ(1, a.ch)) },
			}}
		},
		"MR": func(a *all) object {
			return object{a.mr.Close, map[string]func() error{"Close": a.mr.Close}}
		},
		"MW": func(a *all) object {
			return object{a.mw.Close, map[string]func() error{"Close": a.mw.Close}}
		},
		"AH": func(a *all) object {
			return object{a.ah.Close, map[string]func() error{"Close": a.ah.Close}}
		},
		"SRQ": func(a *all) object {
			return object{a.srq.Close, map[string]func() error{
				"PostRecv": func() error { return of(a.srq.PostRecv(verbs.RecvWR{})) },
				"SetLimit": func() error { return a.srq.SetLimit(1) },
				"Close":    a.srq.Close,
				"CreateQP": func() error {
					return of(a.p.ctx.CreateQP(a.p.pd, verbs.QPInit{Type: verbs.RC, SendCQ: a.p.cq, RecvCQ: a.p.cq, SRQ: a.srq}))
				},
			}}
		},
		"PD": func(a *all) object {
			return object{a.pd.Close, map[string]func() error{
				"RegMR":     func() error { return of(a.pd.RegMR(make([]byte, 8), 0)) },
				"AllocMW":   func() error { return of(a.pd.AllocMW()) },
				"CreateAH":  func() error { return of(a.pd.CreateAH(verbs.AHAttr{})) },
				"CreateSRQ": func() error { return of(a.pd.CreateSRQ(1, 1)) },
				"CreateQP": func() error {
					return of(a.p.ctx.CreateQP(a.pd, verbs.QPInit{Type: verbs.RC, SendCQ: a.p.cq, RecvCQ: a.p.cq}))
				},
				"Close": a.pd.Close,
			}}
		},
		"Listener": func(a *all) object {
			return object{a.l.Close, map[string]func() error{
				"Accept": func() error { return of(a.l.Accept(t.Context())) },
				"Close":  a.l.Close,
			}}
		},
	}
	objects["Context"] = func(a *all) object {
		c, calls := a.p.ctx, map[string]func() error{
			"CreateCQ":   func() error { return of(a.p.ctx.CreateCQ(1, nil)) },
			"Listen":     func() error { return of(a.p.ctx.Listen(0, 0)) },
			"AsyncEvent": func() error { return of(a.p.ctx.AsyncEvent(t.Context())) },
			"Serve":      func() error { return a.p.ctx.Serve(t.Context()) },
			"Err":        a.p.ctx.Err,
			"Close":      a.p.ctx.Close,
			"Reject":     func() error { return a.request.Reject(nil) },
			"Conn.Close": func() error { return a.conn.Close() },
		}
		for name, f := range objects {
			if name == "Context" {
				continue
			}
			for call, g := range f(a).calls {
				calls[name+"."+call] = g
			}
		}
		return object{c.Close, calls}
	}
	for name, f := range objects {
		t.Run(name, func(t *testing.T) {
			ha, hb := links[0].open(t, unet.HostConfig{})
			a := &all{p: newPeer(t, open(t, ha), verbs.RC), other: newPeer(t, open(t, hb), verbs.RC)}
			var err error
			a.pd, a.ch = a.p.ctx.AllocPD(), a.p.ctx.CreateCompChannel()
			a.srq, err = a.p.pd.CreateSRQ(4, 1)
			testutil.Must(t, err)
			a.mr, err = a.p.pd.RegMR(make([]byte, 8), 0)
			testutil.Must(t, err)
			a.mw, err = a.p.pd.AllocMW()
			testutil.Must(t, err)
			a.ah, err = a.p.pd.CreateAH(verbs.AHAttr{})
			testutil.Must(t, err)
			a.cq, err = a.p.ctx.CreateCQ(1, nil)
			testutil.Must(t, err)
			qp, err := a.p.ctx.CreateQP(a.p.pd, verbs.QPInit{Type: verbs.RC, SendCQ: a.p.cq, RecvCQ: a.p.cq, Cap: capacity})
			testutil.Must(t, err)
			testutil.Must(t, qp.Init(0))
			if _, err := qp.PostRecv(verbs.RecvWR{WRID: 77}); err != nil {
				t.Fatal(err)
			}
			a.l, err = a.p.ctx.Listen(0, 0)
			testutil.Must(t, err)
			for _, answered := range []bool{true, false} {
				dial := newPeer(t, a.other.ctx, verbs.RC)
				go a.other.ctx.Dial(t.Context(), a.l.Addr(), dial.qp, nil)
				r, err := a.l.Accept(t.Context())
				testutil.Must(t, err)
				if a.request = r; answered {
					a.conn, err = r.Accept(t.Context(), newPeer(t, a.p.ctx, verbs.RC).qp, nil)
					testutil.Must(t, err)
				}
			}
			o := f(a)
			testutil.Must(t, o.close())
			for call, g := range o.calls {
				if err := g(); !errors.Is(err, net.ErrClosed) {
					t.Errorf("%s: %v", call, err)
				}
			}
			if name != "Context" {
				return
			}
			// What was posted is flushed.
			if n := a.p.cq.Poll(a.p.wcs[:]); n != 1 || a.p.wcs[0].WRID != 77 || a.p.wcs[0].Status != verbs.StatusWRFlushErr {
				t.Errorf("%d completions: %+v", n, a.p.wcs[0])
			}
			if n := a.p.cq.Poll(a.p.wcs[:]); n != 0 || qp.State() != verbs.StateErr {
				t.Errorf("%d more completions in %v", n, qp.State())
			}
			// The rest has no error to return.
			a.p.ctx.Poll()
			a.p.cq.ReqNotify(false)
			<-a.conn.Done()
		})
	}
}

// Lengths and numbers that do not fit are refused, and not cut.
func TestLengthsAreNotCut(t *testing.T) {
	a, b := newPeers(t, links[0], unet.HostConfig{}, verbs.RC)
	srq, err := a.pd.CreateSRQ(1, 1)
	testutil.Must(t, err)
	ud := newPeer(t, b.ctx, verbs.UD)
	testutil.Must(t, ud.qp.Modify(verbs.QPAttr{State: verbs.StateInit}, verbs.QPState|verbs.QPQKey))
	testutil.Must(t, ud.qp.Modify(verbs.QPAttr{State: verbs.StateRTR}, verbs.QPState))
	testutil.Must(t, ud.qp.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.QPState|verbs.QPSQPSN))
	ah, err := ud.pd.CreateAH(verbs.AHAttr{Dst: a.ctx.Addr().As4()})
	testutil.Must(t, err)
	for _, n := range []int{1<<32 + 64, -1, math.MaxInt, math.MinInt, 1<<31 + 1} {
		list := []verbs.SGE{a.mr.SGE(0, n)}
		for what, post := range map[string]func() (int, error){
			"send":    func() (int, error) { return a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: list}) },
			"READ":    func() (int, error) { return a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: list}) },
			"receive": func() (int, error) { return a.qp.PostRecv(verbs.RecvWR{SGList: list}) },
			"SRQ":     func() (int, error) { return srq.PostRecv(verbs.RecvWR{SGList: list}) },
			"UD": func() (int, error) {
				return ud.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: list, AH: ah})
			},
			"UD, a number": func() (int, error) {
				return ud.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, AH: ah, RemoteQPN: 1<<24 + 2})
			},
		} {
			if posted, err := post(); posted != 0 || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s of %d bytes: posted %d, %v", what, n, posted, err)
			}
		}
	}
	h, _ := links[0].open(t, unet.HostConfig{})
	c, err := openContext(t.Context(), h, verbs.Config{MaxQP: -1, MaxKeys: -1, MaxQPWR: math.MaxInt, MaxCQE: math.MaxInt, MaxRDAtomic: -1, Window: -1, MaxConns: -1})
	testutil.Must(t, err)
	defer c.Close()
	newPeer(t, c, verbs.RC)
	if _, err := c.CreateCQ(math.MaxInt, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a CQ of too many entries: %v", err)
	}
	if _, err := c.Dial(t.Context(), netip.AddrPortFrom(c.Addr(), 1), nil, &verbs.ConnParam{PrivateData: make([]byte, verbs.MaxDialPrivate+1)}); err == nil {
		t.Error("private data that is too long")
	}
}
