//go:build linux

package drivers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/test/internal/unetd"
)

// listed is an endpoint of `unetd list --json`.
type listed struct {
	Attach     string `json:"attach"`
	Device     string `json:"device"`
	Mode       string `json:"mode"`
	ZeroCopy   bool   `json:"zero_copy"`
	CopyReason string `json:"copy_reason"`
}

// list is what `unetd list` shows.
func (d *daemon) list(t *testing.T) (all []listed) {
	t.Helper()
	if err := json.Unmarshal([]byte(d.g.Run(t, "unetd", "list", "--json", "--socket", d.Socket)), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// toQueue is a UDP socket of the test's kernel whose datagrams reach the endpoint on queue 0: of
// several queues the device chooses one by the flow.
func (g *machine) toQueue(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	for deadline := time.Now().Add(unetd.TestTimeout); time.Now().Before(deadline); {
		c, err := g.Host.Dial("udp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if returned(c, 1) == nil {
			return c
		}
	}
	t.Fatal("no flow reaches the queue")
	return nil
}

// returned sends a datagram and has it returned.
func returned(c net.Conn, size int) error {
	sent, got := pattern(size), make([]byte, 1<<16)
	if _, err := c.Write(sent); err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(3 * time.Second))
	n, err := c.Read(got)
	if err == nil && !bytes.Equal(got[:n], sent) {
		err = fmt.Errorf("%d other bytes came back", n)
	}
	return err
}

// wholeSizes are of datagrams on both sides of a KiB, and the longest in a frame of Ethernet.
var wholeSizes = []int{1, 900, 1000, 1024, 1100, 1472}

// TestZeroCopy opens an endpoint on a queue in native mode. It has zero copy where the driver has
// it, with the default geometry; the grant, the list and the log say so, or why not. Datagrams of
// all sizes pass, also those of a port whose frames come in on the same queue.
func TestZeroCopy(t *testing.T) {
	eachCard(t, bothKernels, []string{"virtio", "igb", "vmxnet3"}, func(t *testing.T, g *machine, nic string) {
		g.oneQueue(t, nic)
		d := g.Unetd(t, nic, "native")
		if nic == "vmxnet3" { // an XDP program resets its table
			g.Run(t, "ethtool", "-X", nic, "equal", "1")
			g.Restore(t, "ethtool", "-X", nic, "default")
		}
		port := d.startEcho(t, 7000)
		queue := d.startEcho(t, 7001, "-queue", "0")
		port.await(t)
		queue.await(t)
		zeroCopy, why := zeroCopyOf(nic, g.Kernel)
		size := uint32(2048)
		if nic == "igb" && zeroCopy {
			size = 4096
		}
		if queue.Ready.ZeroCopy != zeroCopy || queue.Ready.FrameSize != size {
			t.Errorf("%+v, want zero copy: %v, frames of %d", queue.Ready, zeroCopy, size)
		}
		for _, e := range d.list(t) {
			want := listed{"port", e.Device, "native", false, "ports have no zero copy"}
			if e.Attach == "queue" {
				want = listed{"queue", nic, "native", zeroCopy, why}
			}
			if e != want {
				t.Errorf("listed as %+v, want %+v", e, want)
			}
		}
		line, err := d.Await(`msg="endpoint opened"`, 0, unetd.TestTimeout)
		if want := fmt.Sprintf("mode=native zero_copy=%v copy_reason=", zeroCopy); err != nil || !strings.Contains(line, want) || !strings.Contains(line, why) {
			t.Errorf("logged: %s %v", line, err)
		}
		c := g.toQueue(t, queue.addr)
		for _, n := range wholeSizes {
			if err := returned(c, n); err != nil {
				t.Errorf("queue: datagram of %d bytes: %v", n, err)
			}
		}
		g.datagrams(t, port.addr, wholeSizes)
		t.Logf("stats: %s, counters %v", queue.Ask(t, "stats"), d.Counters(t))
	})
}

// TestZeroCopyIsTakenOver kills unetd. The next one does not know how the endpoint on a queue is
// bound until its process presents it, and then lists it as the first did; datagrams pass.
func TestZeroCopyIsTakenOver(t *testing.T) {
	eachCard(t, bothKernels, []string{"virtio", "igb"}, func(t *testing.T, g *machine, nic string) {
		g.oneQueue(t, nic)
		d := g.Unetd(t, nic, "native")
		queue := d.Echo(t, 7001, "-queue", "0")
		before := d.list(t)
		c := g.toQueue(t, queue.addr)
		d.Signal(syscall.SIGKILL)
		<-d.Done
		if err := returned(c, 1472); err != nil {
			t.Errorf("without unetd: %v", err)
		}
		d = g.Unetd(t, nic, "native")
		if _, err := d.Await(`msg="endpoint presented"`, 0, unetd.TestTimeout); err != nil {
			t.Fatal(err)
		}
		zeroCopy, _ := zeroCopyOf(nic, g.Kernel)
		if after := d.list(t); !slices.Equal(before, after) || len(after) != 1 || after[0].ZeroCopy != zeroCopy {
			t.Errorf("listed as %+v, before as %+v", after, before)
		}
		if err := returned(c, 1472); err != nil {
			t.Error(err)
		}
	})
}

// TestZeroCopyRefused: without iommu_platform virtio_net reports zero copy and refuses it. The
// kernel copies, and the reason is listed.
func TestZeroCopyRefused(t *testing.T) {
	eachCard(t, newKernel, []string{"virtio1"}, func(t *testing.T, g *machine, nic string) {
		d := g.Unetd(t, nic, "native")
		queue := d.Echo(t, 7001, "-queue", "0")
		want := "driver virtio_net refused zero copy: invalid argument, as without QEMU's iommu_platform=on"
		if g.Kernel == "old" {
			want = "driver virtio_net has no zero copy"
		}
		if list := d.list(t); len(list) != 1 || list[0].ZeroCopy || list[0].CopyReason != want || queue.Ready.ZeroCopy {
			t.Errorf("%+v, %+v, want %q", list, queue.Ready, want)
		}
		g.datagrams(t, queue.addr, wholeSizes)
	})
}

// zeroCopyOf is whether a driver has zero copy, and else the reason that is shown.
func zeroCopyOf(nic, kernel string) (bool, string) {
	switch {
	case nic == "vmxnet3", kernel == "old":
		return false, "driver " + driverOf(nic) + " has no zero copy"
	}
	return true, ""
}

func driverOf(nic string) string {
	if strings.HasPrefix(nic, "virtio") {
		return "virtio_net"
	}
	return nic
}

// TestFramesTooSmallForZeroCopy asks for frames of 2048 bytes, into which igb receives 1024: the
// kernel copies, and datagrams of all sizes pass.
func TestFramesTooSmallForZeroCopy(t *testing.T) {
	eachCard(t, newKernel, []string{"igb"}, func(t *testing.T, g *machine, nic string) {
		g.oneQueue(t, nic)
		d := g.Unetd(t, nic, "native")
		queue := d.Echo(t, 7001, "-queue", "0", "-frame", "2048")
		want := "with zero copy driver igb receives 1024 bytes into a frame of 2048, and a packet has up to 1522 (MTU 1500)"
		if g.Kernel == "old" {
			want = "driver igb has no zero copy"
		}
		if list := d.list(t); len(list) != 1 || list[0].ZeroCopy || list[0].CopyReason != want || queue.Ready.ZeroCopy {
			t.Errorf("%+v, %+v, want %q", list, queue.Ready, want)
		}
		c := g.toQueue(t, queue.addr)
		for _, n := range wholeSizes {
			if err := returned(c, n); err != nil {
				t.Errorf("datagram of %d bytes: %v", n, err)
			}
		}
	})
}

// TestInactiveQueueIsRefused asks for queues that the driver has and does not use, and for those that
// virtio_net adds for XDP, by which a socket cannot send.
func TestInactiveQueueIsRefused(t *testing.T) {
	eachCard(t, newKernel, []string{"virtio", "igb"}, func(t *testing.T, g *machine, nic string) {
		g.oneQueue(t, nic)
		d := g.Unetd(t, nic, "native")
		e := d.startEcho(t, 7001, "-queue", "1")
		line, err := e.Await("ended ", 0, unetd.TestTimeout)
		if want := "no such queue: 1 of the "; err != nil || !strings.Contains(line, want) || !strings.Contains(line, "ethtool -L "+nic) {
			t.Errorf("%s %v, want %q", line, err, want)
		}
	})
}
