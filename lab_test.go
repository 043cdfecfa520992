//go:build linux

package unet_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

const testTimeout = 2 * time.Minute // a test that waits longer fails

// countedLease counts claims and bounds the blocks that are held.
type countedLease struct {
	endpoint.Lease
	claims   atomic.Int32
	blocks   atomic.Int32 // blocks of TCP ports that are held
	most     atomic.Int32 // the bound of blocks; 0: none
	refusing func()       // is called before a single port is refused, unless it is nil
}

// boundBlocks lets the host hold n blocks of TCP ports at a time, and no single port, as a policy can
// do.
func (l *countedLease) boundBlocks(n int32) { l.most.Store(n) }

func (l *countedLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	l.claims.Add(1)
	if most := l.most.Load(); most > 0 && t.Kind == endpoint.TagTCP && t.Port == 0 && (!t.Block || l.blocks.Load() >= most) {
		if !t.Block && l.refusing != nil {
			l.refusing()
		}
		return t, fmt.Errorf("%w: no more than %d blocks", endpoint.ErrBusy, most)
	}
	tag, err := l.Lease.Claim(ctx, t)
	if err == nil && tag.Kind == endpoint.TagTCP && tag.Block {
		l.blocks.Add(1)
	}
	return tag, err
}

func (l *countedLease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	err := l.Lease.Unclaim(ctx, t)
	if err == nil && t.Kind == endpoint.TagTCP && t.Block {
		l.blocks.Add(-1)
	}
	return err
}

// lab is a unet.Host on a mux of this process on host A, and a kernel that echoes at
// 10.0.0.2:7000 on host B.
type lab struct {
	*netlab.Pair
	host    *unet.Host
	mux     *mux.Mux
	lease   countedLease
	notices chan endpoint.Notice
	uplink  int // its interface index on A
}

func openLab(t *testing.T) *lab {
	t.Helper()
	return openLabWith(t, netlab.Config{})
}

func openLabWith(t *testing.T, cfg netlab.Config) *lab {
	t.Helper()
	l := &lab{Pair: netlab.RequirePair(t, cfg), notices: make(chan endpoint.Notice, 10000)}
	l.serveEcho(t, "10.0.0.2:7000")
	l.on(t, l.A, func(link netlink.Link) error {
		l.uplink = link.Attrs().Index
		return nil
	})
	l.mux = openMux(t, l.A)
	l.host = newHost(t, l.mux, &l.lease, unet.HostConfig{})
	collect(t, l.host, l.notices)
	return l
}

// collect sends a host's notices to a channel, until the test ends.
func collect(t *testing.T, h *unet.Host, to chan<- endpoint.Notice) {
	changes := h.Notices(t.Context())
	go func() {
		for n := range changes {
			to <- n
		}
	}()
}

// openMux opens a mux in front of a kernel.
func openMux(t *testing.T, at *netlab.Host) *mux.Mux {
	t.Helper()
	return openMuxWith(t, at, mux.Config{})
}

func openMuxWith(t *testing.T, at *netlab.Host, cfg mux.Config) (m *mux.Mux) {
	t.Helper()
	cfg.Interface, cfg.NetNS = at.Interface, at.NS
	m, err := mux.Open(cfg)
	testutil.Must(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close of the mux: %v", err)
		}
	})
	return m
}

// newHost opens a host on a mux, with a lease that counts.
func newHost(t *testing.T, m *mux.Mux, counted *countedLease, cfg unet.HostConfig) *unet.Host {
	t.Helper()
	grant, lease, err := m.OpenEndpoint(t.Context(), endpoint.Request{})
	testutil.Must(t, err)
	counted.Lease = lease
	h, err := unet.New(t.Context(), grant, counted, cfg)
	if err != nil {
		testutil.Must(t, errors.Join(err, grant.Close(), lease.Close()))
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("close of the host: %v", err)
		}
	})
	return h
}

// openHost opens a host on a mux of its own in front of a kernel.
func openHost(t *testing.T, at *netlab.Host, cfg unet.HostConfig) *unet.Host {
	t.Helper()
	return newHost(t, openMux(t, at), new(countedLease), cfg)
}

func (l *lab) serveEcho(t *testing.T, at string) {
	t.Helper()
	echo, err := l.B.ServeEcho(at)
	testutil.Must(t, err)
	t.Cleanup(func() { echo.Close() })
}

// on runs f in the network namespace of a host, with the interface of the host.
func (l *lab) on(t *testing.T, h *netlab.Host, f func(netlink.Link) error) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		link, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		return f(link)
	}))
}

// setNeighSysctl sets a sysctl of the neighbour table of a host.
func (l *lab) setNeighSysctl(t *testing.T, h *netlab.Host, name, value string) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/neigh/"+h.Interface+"/"+name, []byte(value), 0)
	}))
}

// await returns after a notice that satisfies ok.
func (l *lab) await(t *testing.T, what string, ok func(endpoint.Notice) bool) {
	t.Helper()
	for timeout := time.After(testTimeout); ; {
		select {
		case n := <-l.notices:
			if ok(n) {
				return
			}
		case <-timeout:
			t.Fatalf("no notice: %s", what)
		}
	}
}

// client sends numbered requests and reads what comes back.
type client struct {
	t    *testing.T
	conn net.Conn
	n    uint64
}

func (l *lab) dial(t *testing.T, to string) *client {
	t.Helper()
	conn, err := l.host.Dial("udp", to)
	testutil.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	return &client{t: t, conn: conn}
}

// try sends one request and reports whether its answer has come within 20 ms, or
// why it could not be sent.
func (c *client) try() (bool, error) {
	c.n++
	buf := make([]byte, 64)
	c.conn.SetDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := c.conn.Write(binary.BigEndian.AppendUint64(nil, c.n)); err != nil {
		return false, err
	}
	for {
		n, err := c.conn.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case err != nil:
			return false, err
		case n == 8 && binary.BigEndian.Uint64(buf) == c.n:
			return true, nil
		}
	}
}

// untilAnswered tries until a request is answered. It returns how long that took and the
// last error of a send.
func (c *client) untilAnswered(what string) (time.Duration, error) {
	c.t.Helper()
	start := time.Now()
	var last error
	for time.Since(start) < testTimeout {
		ok, err := c.try()
		if ok {
			return time.Since(start), last
		}
		if err != nil {
			last = err
		}
	}
	c.t.Fatalf("%s: no answer (%v)", what, last)
	return 0, nil
}

// exchangeUntilEntryIsOld exchanges requests with a peer until the neighbour entry of its next hop is
// older than the time for which the kernel does not change it (sysctl locktime, 1 s), as the entry of
// a peer that is not new.
func (l *lab) exchangeUntilEntryIsOld(t *testing.T, c *client, hop string) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); {
		c.untilAnswered("until the entry is old")
		var list []netlink.Neigh
		l.on(t, l.A, func(netlink.Link) (err error) {
			list, err = netlink.NeighList(l.uplink, netlink.FAMILY_V4)
			return err
		})
		for _, n := range list {
			if n.IP.String() == hop && n.Updated > 110 {
				return
			}
		}
	}
	t.Fatalf("no old entry for %v", hop)
}
