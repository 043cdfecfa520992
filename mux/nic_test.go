//go:build linux

package mux

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/unet-go/unet/internal/ethtool"
	"github.com/unet-go/unet/internal/netlab"
)

// inNamespace runs fn in a namespace with a pair of links, "nic" with 4 queues and "peer".
func inNamespace(t *testing.T, fn func(nic netlink.Link)) {
	t.Helper()
	h := netlab.RequirePair(t, netlab.Config{}).A
	err := h.Do(func() error {
		a := netlink.NewLinkAttrs()
		a.Name, a.NumRxQueues, a.NumTxQueues = "nic", 4, 4
		veth := netlink.NewVeth(a)
		veth.PeerName = "peer"
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		l, err := netlink.LinkByName("nic")
		if err == nil {
			fn(l)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestActiveQueues(t *testing.T) {
	inNamespace(t, func(nic netlink.Link) {
		want := func(name string, all, want uint32) {
			t.Helper()
			if n, err := activeQueues(name, all); err != nil || n != want {
				t.Errorf("%s: %d active queues, %v; want %d", name, n, err, want)
			}
		}
		if err := withEthtool(func(e *ethtool.Socket) error { return setChannels(e, "nic", 2) }); err != nil {
			t.Fatal(err)
		}
		want("nic", 4, 2)
		want("nic", 1, 1) // of the queues that the mux has tables for
		want("lo", 1, 1)  // its driver does not say
		if n, err := activeQueues("none", 1); err == nil {
			t.Errorf("no interface: %d queues", n)
		}
	})
}

func TestOffloads(t *testing.T) {
	inNamespace(t, func(nic netlink.Link) {
		want := func(name string, of, want offloads) {
			t.Helper()
			if on, err := offloadsOn(name, of); err != nil || on != want {
				t.Errorf("%s: of %v are on: %v, %v; want %v", name, of, on, err, want)
			}
		}
		set := func(name string, of offloads, on bool) {
			t.Helper()
			if err := setOffloads(name, of, on); err != nil {
				t.Error(err)
			}
		}
		want("nic", hidesVLAN|mergesFrames, hidesVLAN) // a veth has no others
		set("nic", 1, false)
		want("nic", hidesVLAN, 2)
		want("nic", mergesFrames, 0)
		set("nic", 1, true)
		set("nic", mergesFrames, true) // refused without an error
		want("nic", hidesVLAN|mergesFrames, hidesVLAN)
		want("lo", hidesVLAN|mergesFrames, 0)
		if _, err := offloadsOn("none", hidesVLAN); err == nil {
			t.Error("no interface, and no error")
		}
	})
	if s := (hidesVLAN | mergesFrames).String(); s != "rx-vlan-hw-parse,rx-vlan-stag-hw-parse,rx-gro-hw,rx-lro" {
		t.Error(s)
	}
	if s := offloads(0).String(); s != "" {
		t.Error(s)
	}
}

func TestDriverName(t *testing.T) {
	inNamespace(t, func(nic netlink.Link) {
		if d, err := driverName("nic"); err != nil || d != "veth" {
			t.Errorf("driver %q, %v", d, err)
		}
		if d, err := driverName("none"); err == nil {
			t.Errorf("no interface: driver %q", d)
		}
		if table, err := rssTable(nic.Attrs().Index); err != nil || table != nil { // a veth has none
			t.Errorf("table of receive queues: %v, %v", table, err)
		}
		if table, err := rssTable(1 << 20); err == nil {
			t.Errorf("no interface: %v", table)
		}
	})
}

// The kernel's notification of a change of the number of queues is recognised, and that of an offload is not
// taken for one.
func TestChannelsNotice(t *testing.T) {
	inNamespace(t, func(netlink.Link) {
		ns, err := netns.Get()
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		sock, err := subscribeChannels(ns)
		if err != nil {
			t.Fatal(err)
		}
		defer sock.Close()
		notice := func(change func(*ethtool.Socket) error) bool {
			t.Helper()
			if err := withEthtool(change); err != nil {
				t.Fatal(err)
			}
			msgs, _, err := sock.Receive()
			if err != nil || len(msgs) != 1 {
				t.Fatalf("%d messages, %v", len(msgs), err)
			}
			return isChannelsNotice(msgs[0].Data)
		}
		if notice(func(e *ethtool.Socket) error { return e.SetFeatures("nic", map[string]bool{offloadNames[0]: false}) }) {
			t.Error("a change of an offload counts as a change of queues")
		}
		if !notice(func(e *ethtool.Socket) error { return setChannels(e, "nic", 3) }) {
			t.Error("a change of queues is not recognised")
		}
	})
	if isChannelsNotice(nil) {
		t.Error("an empty message counts as a change of queues")
	}
}

// A mux logs that the number of active queues has changed.
func TestChangeOfActiveQueuesIsLogged(t *testing.T) {
	var log syncBuffer
	var m *Mux
	inNamespace(t, func(netlink.Link) {
		var err error
		if m, err = Open(Config{Interface: "nic", Log: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
			t.Fatal(err)
		}
		if err := withEthtool(func(e *ethtool.Socket) error { return setChannels(e, "nic", 2) }); err != nil {
			t.Error(err)
		}
	})
	defer m.Close()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(log.String(), "interface=nic active=2\n"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("log: %s", log.String())
		}
	}
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// setChannels sets the number of active receive queues.
func setChannels(e *ethtool.Socket, name string, n uint32) error {
	c, err := e.Channels(name)
	if err == nil {
		c.Rx = n
		err = e.SetChannels(name, c)
	}
	return err
}
