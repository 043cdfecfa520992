//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// Hoarders are users who together take all of something that unetd has a limited number of, each
// within the limits of one user.
const (
	firstHoarder = 64900
	hoarders     = 6

	hoardedPorts = 22000 // to 39999, UDP and TCP, of hostA
	metricsAddr  = "127.0.0.1:9810"
)

// hoardedAddrs are addresses that hoarders may own. The neighbour may own some, too.
var hoardedAddrs = netip.MustParsePrefix("fd00::1:0:0/96")

// hoardedAddr is the n-th address of a user.
func hoardedAddr(uid uint32, n int) netip.Addr {
	a := hoardedAddrs.Addr().As16()
	a[12], a[13], a[14], a[15] = byte(uid-firstHoarder), byte(n>>16), byte(n>>8), byte(n)
	return netip.AddrFrom16(a)
}

// hoardConnections keeps a number of connections that have made a request, and connects again when unetd has
// ended one.
var hoardConnections = newCommand("hoardConnections", func(a *agent, arg connectArg) (nothing, error) {
	for range arg.Count {
		a.repeatTask(func(stop <-chan struct{}) error {
			conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: arg.Socket, Net: "unixpacket"})
			if err != nil && !errors.Is(err, unix.EAGAIN) {
				return err
			}
			if err == nil {
				defer conn.Close()
				defer closeAt(stop, conn)()
				_, _ = conn.Write([]byte(`{"v":1,"id":1,"op":"list"}`)) // permitted to operators only; the connection stays
				for b := make([]byte, 1<<16); err == nil; {
					_, err = conn.Read(b)
				}
			}
			select { // refused, or ended after a time
			case <-stop:
			case <-time.After(5 * time.Second):
			}
			return nil
		})
	}
	return nothing{}, nil
})

// closeAt closes c when stop is closed, until the returned function is called.
func closeAt(stop <-chan struct{}, c io.Closer) (forget func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-stop:
			c.Close()
		case <-over:
		}
	}()
	return func() { close(over) }
}

// untilStopped is a context that ends when stop is closed.
func untilStopped(stop <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// hoardResolves keeps a number of resolves in progress that nobody answers.
var hoardResolves = newCommand("hoardResolves", func(a *agent, arg connectArg) (nothing, error) {
	ctx, cancel := timeout()
	defer cancel()
	grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry})
	for errors.Is(err, endpoint.ErrBusy) && ctx.Err() == nil { // the user's connections of another case are being closed
		time.Sleep(10 * time.Millisecond)
		grant, lease, err = control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry})
	}
	if err != nil {
		return nothing{}, err
	}
	a.hold(grant)
	a.hold(lease)
	var mu sync.Mutex
	n := 0
	for range arg.Count {
		a.repeatTask(func(stop <-chan struct{}) error {
			mu.Lock()
			n++
			dst := netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + n%150)})
			mu.Unlock()
			ctx, cancel := untilStopped(stop)
			defer cancel()
			if _, err := lease.Resolve(ctx, netip.Addr{}, dst); errors.Is(err, endpoint.ErrBusy) {
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		})
	}
	return nothing{}, nil
})

// tagsArg is a user's request for tags: the first of them, and how many ports of an open.
type tagsArg struct {
	Socket string
	First  endpoint.Tag // of the ports or blocks that follow one another
	AtOnce int
	Count  int
}

func (arg *tagsArg) tags(from, n int) (tags []endpoint.Tag) {
	t := arg.First
	step := 1
	if t.Block {
		step = endpoint.BlockPorts
	}
	for i := range n {
		t.Port = arg.First.Port + uint16((from+i)*step)
		tags = append(tags, t)
	}
	return tags
}

// hoardTags opens endpoints with tags until it has Count or unetd refuses a single one, and returns how many it has.
var hoardTags = newCommand("hoardTags", func(a *agent, arg tagsArg) (held int, err error) {
	for n := arg.AtOnce; held < arg.Count && n > 0; {
		ctx, cancel := timeout()
		grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry, Tags: arg.tags(held, n)})
		cancel()
		switch {
		case errors.Is(err, endpoint.ErrBusy):
			n /= 2
		case errors.Is(err, endpoint.ErrTagHeld): // for a moment, by the neighbour
		case err != nil:
			return held, err
		default:
			a.hold(grant)
			a.hold(lease)
			held += n
		}
	}
	return held, nil
})

// cycleTags opens and closes endpoints with tags.
var cycleTags = newCommand("cycleTags", func(a *agent, arg tagsArg) (nothing, error) {
	a.repeatTask(func(stop <-chan struct{}) error {
		ctx, cancel := untilStopped(stop)
		defer cancel()
		grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry, Tags: arg.tags(0, arg.AtOnce)})
		if err == nil {
			err = errors.Join(grant.Close(), lease.Close())
		}
		if ctx.Err() != nil || errors.Is(err, endpoint.ErrBusy) || errors.Is(err, endpoint.ErrTagHeld) {
			return nil
		}
		return err
	})
	return nothing{}, nil
})

type hoardProbesArg struct {
	Socket     string
	UID        uint32
	AtOnce     int
	EachClaims int // addresses
}

// hoardProbes opens endpoints with many addresses, each of which unetd probes.
var hoardProbes = newCommand("hoardProbes", func(a *agent, arg hoardProbesArg) (nothing, error) {
	var mu sync.Mutex
	n := 0
	for range arg.AtOnce {
		a.repeatTask(func(stop <-chan struct{}) error {
			var tags []endpoint.Tag
			mu.Lock()
			for range arg.EachClaims {
				tags = append(tags, endpoint.AddrTag(hoardedAddr(arg.UID, n)))
				n++
			}
			mu.Unlock()
			ctx, cancel := untilStopped(stop)
			defer cancel()
			grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry, Tags: tags})
			if err == nil {
				err = errors.Join(grant.Close(), lease.Close())
			}
			if ctx.Err() != nil || errors.Is(err, endpoint.ErrBusy) {
				return nil
			}
			return err
		})
	}
	return nothing{}, nil
})

// hoardScrapes keeps connections to the metrics: after a scrape, before it, and with half a request.
var hoardScrapes = newCommand("hoardScrapes", func(a *agent, count int) (connected int, err error) {
	for i := range count {
		conn, err := net.Dial("tcp", metricsAddr)
		if err != nil {
			return connected, err
		}
		a.hold(conn)
		connected++
		if i < 40 { // as many as it may have at once
			const request = "GET / HTTP/1.1\r\nHost: unetd\r\n\r\n"
			if _, err := conn.Write([]byte(request)); err != nil {
				return connected, err
			}
			conn.SetReadDeadline(time.Now().Add(time.Second))
			_, _ = conn.Read(make([]byte, 1024)) // if it is served
		}
	}
	return connected, nil
})

// useUnetd opens an endpoint with tags, resolves a route, claims a block of ports and closes it, repeatedly. It
// returns how long each open took.
var useUnetd = newCommand("useUnetd", func(a *agent, arg useArg) (took []time.Duration, err error) {
	use := func() error {
		ctx, cancel := timeout()
		defer cancel()
		begin := time.Now()
		grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry, Tags: arg.Tags})
		for errors.Is(err, endpoint.ErrTagHeld) && ctx.Err() == nil { // the endpoint of the last time is being closed
			time.Sleep(time.Millisecond)
			begin = time.Now()
			grant, lease, err = control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry, Tags: arg.Tags})
		}
		if err != nil {
			return err
		}
		took = append(took, time.Since(begin))
		_, err = lease.Resolve(ctx, netip.Addr{}, hostB)
		if err == nil {
			_, err = lease.Claim(ctx, endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)).AsBlock())
		}
		return errors.Join(err, grant.Close(), lease.Close())
	}
	for range arg.Times {
		if err := use(); err != nil {
			return nil, err
		}
	}
	return took, nil
})

type useArg struct {
	Socket string
	Tags   []endpoint.Tag
	Times  int
}

// startHoarders starts a process of each of n hoarders.
func (s *caseRun) startHoarders(n int) (all []*agentProcess) {
	for i := range n {
		all = append(all, startAgent(s, s.pair.A, firstHoarder+uint32(i)))
	}
	return all
}

const unchecked = -1

// beside runs an attack several times, and measures what an idle user gets during it and without it: opens, and round
// trips to host B. Root asks for the list of endpoints ten times each time. The ratio of the medians is checked in
// the long suite, which runs alone; otherwise it is only printed, since other work on this machine changes it. What
// is refused fails in any case, and a ratio beyond most, if that is not 0; with unchecked none is checked.
func (s *caseRun) beside(most float64, attack func() (processes []*agentProcess), tags ...endpoint.Tag) {
	s.Helper()
	const times = 7
	rounds := 3
	if most <= 0 && !*long { // nothing is compared
		rounds = 1
	}
	use := useArg{s.unetd.Socket, tags, times}
	var openAlone, openBeside, tripAlone, tripBeside []time.Duration
	trip := func() time.Duration {
		for _, b := range neighbourCounts.do(s, s.neighbour, nothing{}) {
			if b.Name == "neighbour's UDP" {
				return b.Median
			}
		}
		return 0
	}
	for range rounds {
		trip()
		openAlone = append(openAlone, useUnetd.do(s, s.neighbour, use)...)
		tripAlone = append(tripAlone, trip())
		processes := attack()
		trip()
		openBeside = append(openBeside, useUnetd.do(s, s.neighbour, use)...)
		tripBeside = append(tripBeside, trip())
		for range 10 {
			ctx, cancel := context.WithTimeout(s.Context(), unetd.TestTimeout)
			if _, err := (control.Operator{Socket: s.unetd.Socket}).List(ctx); err != nil {
				s.Errorf("root's list: %v", err)
			}
			cancel()
		}
		for _, a := range processes {
			a.kill()
		}
		if !testutil.Until(func() bool {
			return !slices.ContainsFunc(list(s, s.unetd), func(e endpoint.Info) bool { return e.UID >= firstHoarder && e.UID < firstHoarder+hoarders })
		}) {
			s.Errorf("endpoints of processes that have ended are left")
		}
	}
	ratio := func(beside, alone []time.Duration) float64 { return float64(median(beside)) / float64(median(alone)) }
	of := ratio(openBeside, openAlone)
	s.row.note("the neighbour's opening took %s (median), without the attack %s: ratio %.2f; its round trip %s, %s: ratio %.2f",
		rounded(median(openBeside)), rounded(median(openAlone)), of, rounded(median(tripBeside)), rounded(median(tripAlone)), ratio(tripBeside, tripAlone))
	if *long && !unetd.RaceEnabled && most == 0 {
		most = 2
	}
	if most > 0 && of > most {
		s.Errorf("the neighbour's opening takes %.2f times as long as without the attack", of)
	}
}

func shareCases() []attackCase {
	return []attackCase{
		{"all connections", "four users hold 256 connections to unetd each; meanwhile the neighbour opens endpoints, and root lists them", func(s *caseRun) {
			s.beside(0, func() []*agentProcess {
				all := s.startHoarders(4)
				for _, a := range all {
					hoardConnections.do(s, a, connectArg{s.unetd.Socket, 256})
				}
				return all
			})
		}},
		{"all resolves", "four users keep 32 resolves in progress each, which nobody answers", func(s *caseRun) {
			s.beside(0, func() []*agentProcess {
				all := s.startHoarders(4)
				for _, a := range all {
					hoardResolves.do(s, a, connectArg{s.unetd.Socket, 32})
				}
				return all
			})
		}},
		{"all tags", "four users claim 8,192 ports each", func(s *caseRun) {
			s.beside(0, func() []*agentProcess {
				all := s.startHoarders(4)
				held := 0
				for i, a := range all {
					first := netip.AddrPortFrom(hostA, uint16(hoardedPorts+i/2*8192))
					tag := []endpoint.Tag{endpoint.UDPTag(first), endpoint.TCPTag(first)}[i%2]
					held += hoardTags.do(s, a, tagsArg{s.unetd.Socket, tag, 1024, 8192})
				}
				s.row.note("%d ports are claimed", held)
				return all
			})
		}},
		{"many tags again and again", "two users open and close endpoints with 24 blocks of 64 ports", func(s *caseRun) {
			s.beside(unchecked, func() []*agentProcess { // more than twice: both processors are busy
				all := s.startHoarders(2)
				for i, a := range all {
					first := netip.AddrPortFrom(hostA, (hoardedPorts+63)/64*64)
					tag := []endpoint.Tag{endpoint.UDPTag(first), endpoint.TCPTag(first)}[i]
					cycleTags.do(s, a, tagsArg{s.unetd.Socket, tag.AsBlock(), 24, 0})
				}
				return all
			})
		}},
		{"all probes", "five users open endpoints with 1,024 addresses, which unetd probes, four at once; meanwhile the neighbour claims an address", func(s *caseRun) {
			s.beside(4, func() []*agentProcess {
				all := s.startHoarders(5)
				for i, a := range all {
					hoardProbes.do(s, a, hoardProbesArg{s.unetd.Socket, firstHoarder + uint32(i), 4, 1024})
				}
				return all
			}, endpoint.AddrTag(hoardedAddr(firstHoarder+hoarders, 1)))
		}},
		{"all connections to the metrics", "one user holds connections to the metrics, after a request and before it; meanwhile root scrapes them", func(s *caseRun) {
			scrape := func() error {
				client := http.Client{Timeout: requestTimeout / 2, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, addr string) (net.Conn, error) {
					return s.pair.A.Dial(network, addr)
				}}}
				r, err := client.Get("http://" + metricsAddr + "/metrics")
				if err != nil {
					return err
				}
				defer r.Body.Close()
				if text, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK || len(text) == 0 {
					return fmt.Errorf("status %d, %d bytes, %w", r.StatusCode, len(text), err)
				}
				return nil
			}
			s.beside(0, func() []*agentProcess {
				all := s.startHoarders(1)
				n := hoardScrapes.do(s, all[0], 100)
				good := 0
				for range 10 {
					if err := scrape(); err != nil {
						s.Errorf("a scrape: %v", err)
						break
					}
					good++
				}
				s.row.note("%d connections, %d of 10 scrapes answered", n, good)
				return all
			})
		}},
	}
}
