package mux_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
)

// owners is who has a port now, as those say who were given it.
type owners struct {
	t   *testing.T
	mu  sync.Mutex
	has map[endpoint.Tag]bool // by single port
}

func each(tag endpoint.Tag, f func(endpoint.Tag)) {
	for port := int(tag.Port); port <= int(tag.LastPort()); port++ {
		f(endpoint.Tag{Kind: tag.Kind, Addr: tag.Addr, Port: uint16(port)})
	}
}

func (o *owners) given(tag endpoint.Tag) {
	o.mu.Lock()
	defer o.mu.Unlock()
	each(tag, func(port endpoint.Tag) {
		if o.has[port] {
			o.t.Errorf("%v was given twice", port)
		}
		o.has[port] = true
	})
}

// gives is called before a port is given back.
func (o *owners) gives(tag endpoint.Tag) {
	o.mu.Lock()
	defer o.mu.Unlock()
	each(tag, func(port endpoint.Tag) { delete(o.has, port) })
}

// worker claims and unclaims for an endpoint of its own, which it sometimes gives up.
func (o *owners) worker(l *lab, rng *rand.Rand) error {
	for range 3 {
		g, lease, err := l.mux.OpenEndpoint(context.Background(), endpoint.Request{Geometry: small})
		if err != nil {
			return err
		}
		var mine []endpoint.Tag
		for range 60 {
			if i := rng.IntN(len(mine) + 2); i < len(mine) {
				o.gives(mine[i])
				if err := lease.Unclaim(context.Background(), mine[i]); err != nil {
					return err
				}
				mine = append(mine[:i], mine[i+1:]...)
				continue
			}
			tag := endpoint.Tag{Kind: pick(rng, []endpoint.TagKind{endpoint.TagUDP, endpoint.TagTCP}),
				Addr: pick(rng, []netip.Addr{l.A.Addr.Addr(), l.A.Addr6.Addr()}), Port: pick(rng, modelPorts)}
			if rng.IntN(2) == 0 {
				tag = tag.AsBlock()
			}
			if rng.IntN(4) == 0 {
				tag.Port = 0
			}
			got, err := lease.Claim(context.Background(), tag)
			switch {
			case err == nil:
				o.given(got)
				mine = append(mine, got)
			case !errors.Is(err, endpoint.ErrTagHeld):
				return err
			}
		}
		for _, tag := range mine {
			o.gives(tag)
		}
		if err := errors.Join(lease.Close(), g.Close()); err != nil {
			return err
		}
	}
	return nil
}

// user is a program of the kernel's network stack that takes ports and leaves them.
func (o *owners) user(h *netlab.Host, rng *rand.Rand) error {
	for range 300 {
		p := program{network: pick(rng, []string{"udp4", "tcp4"}), at: netip.AddrPortFrom(h.Addr.Addr(), pick(rng, modelPorts)).String()}
		fd, err := p.start(h)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return err
		}
		tag := endpoint.Tag{Kind: modelKind(p), Addr: h.Addr.Addr(), Port: netip.MustParseAddrPort(p.at).Port()}
		o.given(tag)
		o.gives(tag)
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	return nil
}

// Many who want the same ports at once, the kernel's programs among them: each
// port has one owner at any time, and in the end nothing is left.
func TestRacingClaims(t *testing.T) {
	warm(t)
	l := openLab6(t)
	before := look(t, l.A)
	o := &owners{t: t, has: map[endpoint.Tag]bool{}}
	var all sync.WaitGroup
	start := func(what string, f func() error) {
		all.Go(func() {
			if err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	for i := range uint64(6) {
		start("an endpoint", func() error { return o.worker(l, rand.New(rand.NewPCG(i, 2))) })
	}
	for i := range uint64(2) {
		start("a program", func() error { return o.user(l.A, rand.New(rand.NewPCG(i, 3))) })
	}
	all.Wait()
	l.wantClaims(0)
	if n := l.mux.CountedClaims(); n != 0 {
		t.Errorf("%d entries of the indexes are left", n)
	}
	wantTraces(t, l.A, before)
}

// A lease that is closed while it claims keeps nothing.
func TestClaimsOfAClosingLease(t *testing.T) {
	warm(t)
	l := openLab6(t)
	before := look(t, l.A)
	for range 20 {
		g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
		must(t, err)
		var all sync.WaitGroup
		for _, tag := range []endpoint.Tag{tcpBlock("10.0.0.1:0"), udpBlock("[fd00::1]:40000"), tcpTag("[::]:0"), endpoint.MessageTag(0), addrTag("fd00::77")} {
			all.Go(func() {
				for {
					got, err := lease.Claim(context.Background(), tag)
					if err == nil && tag.Kind != endpoint.TagMessage {
						err = lease.Unclaim(context.Background(), got)
					}
					if errors.Is(err, endpoint.ErrLeaseClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		eventually(t, "a claim", func() bool {
			held, _, _, err := l.mux.Claims()
			return err != nil || len(held) > 2
		})
		must(t, lease.Close())
		all.Wait()
		l.wantClaims(0)
		must(t, g.Close())
	}
	wantTraces(t, l.A, before)
}
