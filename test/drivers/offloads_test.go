//go:build linux

package drivers_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/test/internal/unetd"
)

// offloads are the lines of `ethtool -k` about what unetd or the kernel turns off while unetd runs.
// A driver without an offload has it as "off [fixed]".
func (g *machine) offloads(t *testing.T, nic string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(g.Run(t, "ethtool", "-k", nic)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "rx-vlan-offload", "rx-vlan-stag-hw-parse", "rx-gro-hw", "large-receive-offload":
			all[name] = value
		}
	}
	return all
}

// stop ends unetd.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	d.Signal(syscall.SIGTERM)
	select {
	case <-d.Done:
	case <-time.After(unetd.TestTimeout):
		t.Fatal("unetd does not end")
	}
}

// sendVLAN sends a datagram in a VLAN from the test's kernel to a port of the guest.
func (g *machine) sendVLAN(t *testing.T, nic string, port uint16, vlan uint16) {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 9}, DstMAC: []byte{2, 0, 0, 0, 9, byte(cardIndex(nic))}, EthernetType: layers.EthernetTypeDot1Q}
	tag := &layers.Dot1Q{VLANIdentifier: vlan, Type: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: peerOf(nic).AsSlice(), DstIP: addrOf(nic).AsSlice()}
	udp := &layers.UDP{SrcPort: 9000, DstPort: layers.UDPPort(port)}
	frame := frametest.Build(eth, tag, ip, udp, gopacket.Payload("of a VLAN"))
	err := g.Host.Do(func() error {
		link, err := netlink.LinkByName(tapOf(nic))
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}), unix.Close(fd))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVLANOffload turns receive VLAN offload on while unetd runs: it is off again, and frames of a
// VLAN are the kernel's.
func TestVLANOffload(t *testing.T) {
	eachCard(t, newKernel, []string{"igb"}, func(t *testing.T, g *machine, nic string) {
		g.Run(t, "ethtool", "-K", nic, "rxvlan", "on")
		// The card receives frames of a VLAN if there is an interface of it (rx-vlan-filter).
		g.Run(t, "ip", "link", "add", "link", nic, "name", "vlan5", "up", "type", "vlan", "id", "5")
		g.Restore(t, "ip", "link", "del", "vlan5")
		before := g.offloads(t, nic)
		if before["rx-vlan-offload"] != "on" {
			t.Fatalf("the driver has no such offload: %v", before)
		}
		d := g.Unetd(t, nic, "native")
		e := d.Echo(t, 7000)
		from := d.Lines()
		g.Run(t, "ethtool", "-K", nic, "rxvlan", "on")
		if _, err := d.Await("receive VLAN offload had been turned on", from, unetd.TestTimeout); err != nil {
			t.Fatal(err)
		}
		if now := g.offloads(t, nic); now["rx-vlan-offload"] != "off" {
			t.Errorf("the offload is not off again: %v", now)
		}
		// The port answers when the link is up again: drivers close and open the device.
		if err := g.datagram(e.addr, 100, 30, time.Second); err != nil {
			t.Error(err)
		}
		was := d.Counters(t)
		for range 10 {
			g.sendVLAN(t, nic, 7000, 5)
		}
		g.datagrams(t, e.addr, []int{100})
		if now := d.Counters(t); now["rx_pass_vlan"]-was["rx_pass_vlan"] != 10 || now["rx_port"]-was["rx_port"] != 1 {
			t.Errorf("counters before the frames of a VLAN %v, after them and one other %v", was, now)
		}
		d.stop(t)
		if now := g.offloads(t, nic); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("offloads %v, before unetd %v", now, before)
		}
	})
}

// TestOffloadsAreRestored looks at the offloads of merged frames, which are off while there is XDP on
// the uplink: on again after unetd has ended, after `unetd cleanup`, and in tcx mode after the last endpoint on a queue.
func TestOffloadsAreRestored(t *testing.T) {
	eachCard(t, newKernel, []string{"virtio", "vmxnet3"}, func(t *testing.T, g *machine, nic string) {
		merges := map[string]string{"virtio": "rx-gro-hw", "vmxnet3": "large-receive-offload"}[nic]
		g.oneQueue(t, nic)
		was := g.offloads(t, nic)[merges]
		g.Restore(t, "ethtool", "-K", nic, flagOf(merges), was)
		g.Run(t, "ethtool", "-K", nic, flagOf(merges), "on")
		want := func(when, state string) {
			t.Helper()
			if now := g.offloads(t, nic); now[merges] != state {
				t.Errorf("%s: %v, want %s %s", when, now, merges, state)
			}
		}
		want("before", "on")
		d := g.Unetd(t, nic, "native")
		want("native mode", "off")
		d.stop(t)
		want("after native mode", "on")

		d = g.Unetd(t, nic, "native")
		d.Kill()
		want("after a crash", "off")
		g.Run(t, "unetd", "cleanup", "--socket", d.Socket)
		want("after cleanup", "on")

		d = g.Unetd(t, nic, "tcx")
		want("tcx mode", "on")
		if nic == "vmxnet3" { // it has two queues here, and a queue gets no tags
			return
		}
		e := d.Echo(t, 7001, "-queue", "0")
		want("tcx mode with a queue", "off")
		e.Kill()
		for deadline := time.Now().Add(unetd.TestTimeout); g.offloads(t, nic)[merges] != "on" && time.Now().Before(deadline); {
		}
		want("tcx mode after the queue", "on")
	})
}

// TestHardwareGROIsAlwaysOn: the kernel would warn of generic XDP, so unetd does not attach it. Ports
// work in tcx mode.
func TestHardwareGROIsAlwaysOn(t *testing.T) {
	eachCard(t, newKernel, []string{"fixed"}, func(t *testing.T, g *machine, nic string) {
		if now := g.offloads(t, nic); now["rx-gro-hw"] != "on [fixed]" {
			t.Fatalf("offloads: %v", now)
		}
		d := g.Unetd(t, nic, "auto")
		if line, err := d.startEcho(t, 7001, "-queue", "0").Await("does not turn rx-gro-hw off", 0, unetd.TestTimeout); err != nil {
			t.Error(err)
		} else {
			t.Log(line)
		}
		e := d.Echo(t, 7000)
		g.datagrams(t, e.addr, []int{100})
		if err := g.stream(e.addr, 1<<19); err != nil {
			t.Error(err)
		}
		d.wantNoLoss(t)
	})
}

// flagOf is the name for `ethtool -K`.
func flagOf(offload string) string {
	if offload == "large-receive-offload" {
		return "lro"
	}
	return offload
}

// TestSuperFramesAreCut sends super-frames to a port of a user who is not trusted: the kernel cuts them,
// without a warning.
func TestSuperFramesAreCut(t *testing.T) {
	eachCard(t, newKernel, []string{"virtio"}, func(t *testing.T, g *machine, nic string) {
		g.Run(t, "sh", "-c", `echo '{rules: [{name: untrusted, users: [0, 65534], tags: ["udp:*:*", "tcp:*:*"], endpoints: 4, memory: 256MiB}]}' > /run/untrusted.yaml`)
		d := g.Unetd(t, nic, "tcx", "--policy", "/run/untrusted.yaml")
		e := d.Echo(t, 7000)
		if err := g.stream(e.addr, 2<<20); err != nil {
			t.Error(err)
		}
		if c := d.Counters(t); c["rx_cut"] == 0 {
			t.Errorf("no super-frame came: %v", c)
		}
		d.wantNoLoss(t)
	})
}
