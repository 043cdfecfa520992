//go:build linux

package nic

import (
	"errors"
	"strings"
	"testing"

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
			if n, err := ActiveQueues(name, all); err != nil || n != want {
				t.Errorf("%s: %d active queues, %v; want %d", name, n, err, want)
			}
		}
		if err := WithEthtool(func(e *ethtool.Socket) error { return setChannels(e, "nic", 2) }); err != nil {
			t.Fatal(err)
		}
		want("nic", 4, 2)
		want("nic", 1, 1) // of the queues that the mux has tables for
		want("lo", 1, 1)  // its driver does not say
		if n, err := ActiveQueues("none", 1); err == nil {
			t.Errorf("no interface: %d queues", n)
		}
	})
}

func TestOffloads(t *testing.T) {
	inNamespace(t, func(nic netlink.Link) {
		want := func(name string, of, want Offloads) {
			t.Helper()
			if on, err := OffloadsOn(name, of); err != nil || on != want {
				t.Errorf("%s: of %v are on: %v, %v; want %v", name, of, on, err, want)
			}
		}
		set := func(name string, of Offloads, on bool) {
			t.Helper()
			if err := SetOffloads(name, of, on); err != nil {
				t.Error(err)
			}
		}
		want("nic", HidesVLAN|MergesFrames, HidesVLAN) // a veth has no others
		set("nic", 1, false)
		want("nic", HidesVLAN, 2)
		want("nic", MergesFrames, 0)
		set("nic", 1, true)
		set("nic", MergesFrames, true) // refused without an error
		want("nic", HidesVLAN|MergesFrames, HidesVLAN)
		want("lo", HidesVLAN|MergesFrames, 0)
		if _, err := OffloadsOn("none", HidesVLAN); err == nil {
			t.Error("no interface, and no error")
		}
	})
	if s := (HidesVLAN | MergesFrames).String(); s != "rx-vlan-hw-parse,rx-vlan-stag-hw-parse,rx-gro-hw,rx-lro" {
		t.Error(s)
	}
	if s := Offloads(0).String(); s != "" {
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
		if table, err := RSSTable(nic.Attrs().Index); err != nil || table != nil { // a veth has none
			t.Errorf("table of receive queues: %v, %v", table, err)
		}
		if table, err := RSSTable(1 << 20); err == nil {
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
		sock, err := SubscribeChannels(ns)
		if err != nil {
			t.Fatal(err)
		}
		defer sock.Close()
		notice := func(change func(*ethtool.Socket) error) bool {
			t.Helper()
			if err := WithEthtool(change); err != nil {
				t.Fatal(err)
			}
			msgs, _, err := sock.Receive()
			if err != nil || len(msgs) != 1 {
				t.Fatalf("%d messages, %v", len(msgs), err)
			}
			return IsChannelsNotice(msgs[0].Data)
		}
		if notice(func(e *ethtool.Socket) error { return e.SetFeatures("nic", map[string]bool{offloadNames[0]: false}) }) {
			t.Error("a change of an offload counts as a change of queues")
		}
		if !notice(func(e *ethtool.Socket) error { return setChannels(e, "nic", 3) }) {
			t.Error("a change of queues is not recognised")
		}
	})
	if IsChannelsNotice(nil) {
		t.Error("an empty message counts as a change of queues")
	}
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

// A port of a bridge is found out. Links that have MAC addresses and no neighbours are refused, with what to serve.
func TestPortsAndUnfitLinks(t *testing.T) {
	inNamespace(t, func(nic netlink.Link) {
		h, err := netlink.NewHandle()
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		portOf := func(want string) {
			t.Helper()
			if u, err := FindUplink(h, "nic"); err != nil || u.PortOf != want {
				t.Errorf("port of %q, %v; want %q", u.PortOf, err, want)
			}
		}
		portOf("")
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
		if err := errors.Join(h.LinkAdd(br), h.LinkSetMaster(nic, br)); err != nil {
			t.Fatal(err)
		}
		portOf("bridge br")
		if u, err := FindUplink(h, "br"); err != nil || u.PortOf != "" {
			t.Errorf("the bridge: %+v, %v", u, err)
		}
	})
	for _, c := range []struct {
		link netlink.Link
		says string
	}{
		{&netlink.Vrf{}, "serve its members"},
		{&netlink.IPVlan{Mode: netlink.IPVLAN_MODE_L3}, "mode l2"}, {&netlink.IPVlan{Mode: netlink.IPVLAN_MODE_L3S}, "mode l2"},
		{&netlink.IPVlan{Mode: netlink.IPVLAN_MODE_L2}, ""}, {&netlink.Bond{}, ""}, {&netlink.Vlan{}, ""},
	} {
		if why := unfit(c.link); (why == "") != (c.says == "") || !strings.Contains(why, c.says) {
			t.Errorf("%s: %q, want %q", c.link.Type(), why, c.says)
		}
	}
}
