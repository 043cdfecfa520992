//go:build linux

package mux_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// The ports of many leases that end at the same time, or with the mux, are deleted together. No other device
// is deleted, also if it has the group that ports get for this.
func TestPortsAreDeletedTogether(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	testutil.Must(t, l.A.Do(func() error {
		other := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other", Group: 5}, PeerName: "end"}
		return errors.Join(netlink.LinkAdd(other), netlink.LinkSetGroup(other, 5))
	}))
	before := listObjects(t, l.A)
	open := func() (leases []*mux.Lease) {
		for range 12 {
			g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
			testutil.Must(t, err)
			t.Cleanup(func() { g.Close() })
			leases = append(leases, lease)
		}
		return leases
	}
	stays := l.open(udpTag("10.0.0.1:7000"))
	var all sync.WaitGroup
	for _, lease := range open() {
		all.Go(func() {
			if err := lease.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if now := listObjects(t, l.A); len(now.links) != len(before.links)+1 {
		t.Errorf("left: %v, before: %v", now.links, before.links)
	}
	b := kernelUDP(t, l.B, "10.0.0.2:0")
	l.echo(b, stays, "still there")
	open()
	testutil.Must(t, l.mux.Close())
	if now := listObjects(t, l.A); !slices.Equal(now.links, before.links) {
		t.Errorf("left: %v, before: %v", now.links, before.links)
	}
}

// If another program deletes the port of an endpoint or moves it to another network namespace, the lease ends
// with the reason, the log names the port, and the tag is free.
func TestLeaseEndsWhenPortIsDeleted(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	var log logBuffer
	l.openConfig(mux.Config{Pin: l.pin, Log: slog.New(slog.NewTextHandler(&log, nil))})
	other := l.open(endpoint.MessageTag(8))
	for _, remove := range []func(netlink.Link) error{
		netlink.LinkDel,
		func(port netlink.Link) error { return netlink.LinkSetNsFd(port, int(l.B.NS)) },
	} {
		a := l.open(udpTag("10.0.0.1:7000"))
		port := fmt.Sprintf("unet%d", a.grant.ID)
		onDevice(t, l.A, port, remove)
		testutil.Eventually(t, "its lease has ended", func() bool { return a.lease.Err() != nil })
		if err := a.lease.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, mux.ErrPortDeleted) || !strings.Contains(err.Error(), port) {
			t.Errorf("ended by %v", err)
		}
		testutil.Eventually(t, "the port in the log", func() bool {
			return strings.Contains(log.String(), fmt.Sprintf("port=%s endpoint=%d uid=0", port, a.grant.ID))
		})
		a.close()
	}
	// A lease does not end if its owner closes the socket.
	warned := strings.Count(log.String(), "level=WARN")
	b := l.open(udpTag("10.0.0.1:7000"))
	links := len(listObjects(t, l.A).links)
	lease := b.lease
	testutil.Must(t, l.mux.StopFillRingChecks())
	b.closeDescriptors()
	testutil.Eventually(t, "the port is gone", func() bool { return len(listObjects(t, l.A).links) < links })
	// Events come in order: when a later event has had its effect, the event of this port was handled.
	onDevice(t, l.A, fmt.Sprintf("unet%d", other.grant.ID), netlink.LinkDel)
	testutil.Eventually(t, "the other lease has ended", func() bool { return other.lease.Err() != nil })
	if err := lease.Err(); err != nil {
		t.Errorf("ended by %v", err)
	}
	testutil.Must(t, lease.Close())
	testutil.Eventually(t, "a warning in the log", func() bool { return strings.Count(log.String(), "level=WARN") > warned })
	if n := strings.Count(log.String(), "level=WARN"); n != warned+1 {
		t.Errorf("%d more warnings:\n%s", n-warned, log.String())
	}
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The mux fails if the uplink is deleted, moved, or has another MAC address.
func TestMuxFailsWhenUplinkChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, says string
		change     func(netlink.Link) error
	}{
		{"deleted", "uplink was deleted", netlink.LinkDel},
		{"moved", "moved to another network namespace", func(l netlink.Link) error {
			p, err := netlab.NewPair(netlab.Config{})
			if err != nil {
				return err
			}
			defer p.Close()
			return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "elsewhere"), netlink.LinkSetNsFd(l, int(p.B.NS)))
		}},
		{"another MAC address", "is 02:00:00:00:00:99 now", func(l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 0x99})
		}},
	} {
		l := openLab(t, mux.ModeAuto)
		l.open(endpoint.MessageTag(7))
		testutil.Must(t, l.A.Do(func() error {
			uplink, err := netlink.LinkByName(l.A.Interface)
			if err != nil {
				return err
			}
			return c.change(uplink)
		}))
		select {
		case err := <-l.mux.Failed():
			if !errors.Is(err, mux.ErrUplinkChanged) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.what, err)
			}
		case <-time.After(testTimeout):
			t.Errorf("%s: no error", c.what)
		}
		testutil.Must(t, l.mux.Close())
	}
}

// A new MTU is logged, and is that of new endpoints. Changes of other interfaces are not logged.
func TestUplinkMTUChanges(t *testing.T) {
	t.Parallel()
	p := netlab.RequirePair(t, netlab.Config{})
	var log logBuffer
	m, err := mux.Open(mux.Config{Interface: p.A.Interface, NetNS: p.A.NS, Log: slog.New(slog.NewTextHandler(&log, nil))})
	testutil.Must(t, err)
	defer m.Close()
	testutil.Must(t, p.A.Do(func() error {
		other := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: "end"}
		uplink, err := netlink.LinkByName(p.A.Interface)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkAdd(other), netlink.LinkSetMTU(other, 1300), netlink.LinkDel(other), netlink.LinkSetMTU(uplink, 1400))
	}))
	testutil.Eventually(t, "the MTU in the log", func() bool { return strings.Contains(log.String(), "MTU") })
	if s := log.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, "mtu=1400 loaded=1500") || strings.Contains(s, "1300") {
		t.Errorf("log: %s", s)
	}
	if id := m.Identity(); id.MTU != 1400 {
		t.Errorf("identity %+v", id)
	}
	onDevice(t, p.A, p.A.Interface, mtu(1500))
	testutil.Eventually(t, "the MTU of the programs is logged", func() bool { return strings.Contains(log.String(), "mtu=1500\n") })
	if s := log.String(); strings.Count(s, "level=WARN") != 1 {
		t.Errorf("log: %s", s)
	}
	select {
	case err := <-m.Failed():
		t.Errorf("failed: %v", err)
	default:
	}
}

// Done is closed after each way in which a lease can end.
func TestLeaseDone(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a, b := l.open(), l.open()
	for _, x := range []*app{a, b} {
		select {
		case <-x.lease.Done():
			t.Fatal("Done is closed before the lease has ended")
		default:
		}
	}
	testutil.Must(t, a.lease.Close())
	select {
	case <-b.lease.Done():
		t.Error("Done of another lease is closed")
	default:
	}
	testutil.Must(t, l.mux.Close())
	for _, x := range []*app{a, b} {
		select {
		case <-x.lease.Done():
		default:
			t.Error("Done is not closed after Close")
		}
	}
}

// The error of a full table is ErrTableFull.
func TestTagTableIsFull(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	tags := make([]endpoint.Tag, l.mux.TagTableSize())
	for i := range tags {
		tags[i] = endpoint.MessageTag(uint32(i + 1))
	}
	a := l.open(tags[1:]...)
	b := l.open(tags[0])
	one := endpoint.MessageTag(1 << 31)
	if _, err := b.lease.Claim(t.Context(), one); !errors.Is(err, mux.ErrTableFull) {
		t.Errorf("got %v", err)
	}
	testutil.Must(t, a.lease.Unclaim(t.Context(), tags[1]))
	if _, err := b.lease.Claim(t.Context(), one); err != nil {
		t.Errorf("when a tag was given back: %v", err)
	}
}

// A tag that cannot be deleted from the kernel's table is not given to another endpoint.
func TestTagThatCannotBeDeletedStaysHeld(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	testutil.Must(t, err)
	defer g.Close()
	b := l.open()
	testutil.Must(t, l.mux.CloseTagTable())
	if err := lease.Unclaim(t.Context(), udpTag("10.0.0.1:7000")); err == nil {
		t.Error("unclaim: no error")
	}
	if err := lease.Close(); err == nil {
		t.Error("close: no error")
	}
	if _, err := b.lease.Claim(t.Context(), udpTag("10.0.0.1:7000")); !errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), "of the same user holds it") {
		t.Errorf("claim the tag that could not be deleted: %v", err)
	}
	bind := func() error {
		return l.A.Do(func() error {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 7000})
			if err == nil {
				c.Close()
			}
			return err
		})
	}
	if bind() == nil {
		t.Error("a kernel program got a port that is still in the table")
	}
	testutil.Must(t, l.mux.Close())
	testutil.Must(t, bind()) // the mux has closed the table
}

// A port that cannot be deleted keeps its programs, so that frames of its endpoint are checked, until
// Close tries again.
func TestPortThatCannotBeDeletedKeepsPrograms(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
	testutil.Must(t, err)
	defer g.Close() // until then the kernel does not delete the port
	outer := fmt.Sprintf("unet%d", g.ID)
	restore := l.mux.FailDeletions(unix.EINVAL)
	if err := lease.Close(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("close: %v", err)
	}
	lease = nil
	runtime.GC() // finalizers close descriptors without a reference
	runtime.GC()
	if now := listObjects(t, l.A); !slices.Contains(now.links, outer) || !slices.Contains(now.programs, outer) {
		t.Errorf("%s without its program: %+v", outer, now)
	}
	restore()
	testutil.Must(t, l.mux.Close())
	if now := listObjects(t, l.A); slices.Contains(now.links, outer) {
		t.Errorf("%s is still there: %+v", outer, now)
	}
}
