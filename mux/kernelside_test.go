//go:build linux

package mux_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// What the kernel itself sends out of the devices of a mux is dropped and counted, whoever owns the port. The sums
// of counters remain equal.
func TestKernelSendsOutOfDevices(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			b := &statisticsLab{lab: &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}}
			if mode == mux.ModeNative {
				listenGRO(t, b.B)
			}
			b.received = b.statistics(b.A.Interface).RxPackets
			b.openMux(mode)
			trusted := b.open(udpTag("10.0.0.1:7000"), udpTag("239.9.9.9:7000"))
			untrusted := b.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7001")}})
			b.apps = []*app{trusted, untrusted}
			// No broadcast: of these the kernel receives copies on the same device, which tx_forged_link counts.
			targets := []string{"239.9.9.9", "10.0.0.255", "10.0.0.1", "10.0.0.77", "192.0.2.1"}
			want := uint64(0)
			for _, prefix := range []string{fmt.Sprint("unet", trusted.grant.ID), fmt.Sprint("unet", untrusted.grant.ID), "unetup", "unettop"} {
				device := b.device(prefix)
				b.sendBound(device, targets)
				want += uint64(len(targets))
			}
			testutil.Eventually(t, "what the kernel sent is counted", func() bool { return b.count()["deliver_kernel"] == want })
			for _, a := range b.apps {
				a.wantNothing("after the kernel's frames")
			}
			// The cutter is no way to anywhere: the kernel drops what is sent there.
			if mode != mux.ModeNative {
				b.sendBound(b.device("unetcut"), targets)
				testutil.Eventually(t, "what was sent to the cutter is counted", func() bool { return b.count()["lost_cut"] == uint64(len(targets)) })
			}
			b.echo(kernelUDP(t, b.B, "10.0.0.2:0"), trusted, "still there")
			b.wantBalance()
		})
	}
}

// device is the interface of host A whose name begins with prefix.
func (l *lab) device(prefix string) (name string) {
	l.t.Helper()
	testutil.Must(l.t, l.A.Do(func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			if strings.HasPrefix(i.Name, prefix) {
				name = i.Name
			}
		}
		return err
	}))
	if name == "" {
		l.t.Fatalf("no device %s", prefix)
	}
	return name
}

// sendBound sends a datagram to each target by a kernel socket of host A that is bound to a device.
func (l *lab) sendBound(device string, targets []string) {
	l.t.Helper()
	testutil.Must(l.t, l.A.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		testutil.Must(l.t, err)
		defer unix.Close(fd)
		testutil.Must(l.t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
		testutil.Must(l.t, unix.BindToDevice(fd, device))
		for _, target := range targets {
			to := &unix.SockaddrInet4{Port: 7000}
			copy(to.Addr[:], net.ParseIP(target).To4())
			if err := unix.Sendto(fd, []byte("past the tags"), 0, to); err != nil {
				return fmt.Errorf("%s by %s: %w", target, device, err)
			}
		}
		return nil
	}))
}
