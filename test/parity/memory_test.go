//go:build linux

package parity

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// neighbours are two hosts on one mux: the server at 10.0.0.11 and fd00::11, the client at 10.0.0.12 and fd00::12.
func neighbours(t *testing.T) (hosts [2]*unet.Host) {
	p := netlab.RequirePair(t, netlab.Config{IPv6: true})
	m, err := mux.Open(mux.Config{Interface: p.A.Interface, NetNS: p.A.NS, Policy: mux.Permit(mux.Terms{Trusted: true})})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, m.Close()) })
	for i := range hosts {
		grant, lease, err := m.OpenEndpointFor(t.Context(), mux.Owner{PID: i + 1, UID: uint32(1000 + i)}, endpoint.Request{})
		testutil.Must(t, err)
		cfg := unet.HostConfig{}
		for _, format := range []string{"10.0.0.1%d", "fd00::1%d"} {
			cfg.Addrs = append(cfg.Addrs, netip.MustParseAddr(fmt.Sprintf(format, i+1)))
		}
		hosts[i], err = unet.New(t.Context(), grant, lease, cfg)
		if err != nil {
			testutil.Must(t, errors.Join(err, grant.Close(), lease.Close()))
		}
		t.Cleanup(func() { testutil.Must(t, hosts[i].Close()) })
	}
	return hosts
}

// by is how many frames a host has sent by its port and by memory.
func by(t *testing.T, h *unet.Host) (port, memory uint64) {
	st, err := h.Stats()
	testutil.Must(t, err)
	return st.Sent, counted(h, "path_frames_sent")
}

func counted(h *unet.Host, name string) uint64 {
	for _, c := range h.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// The facts hold between two endpoints of one host, whose frames go through memory. By the ports go only ICMP errors.
func TestParityByMemory(t *testing.T) {
	for _, family := range []string{"4", "6"} {
		t.Run("IPv"+family, func(t *testing.T) {
			hosts := neighbours(t)
			ours := hostPair{server: unetHost{hosts[0]}, client: unetHost{hosts[1]}, serverIP: "10.0.0.11", clientIP: "10.0.0.12", other: "10.0.0.99", family: family}
			kernel, groups := kernelPair, [][]fact{dialFacts, listenFacts, tcpFacts, udpFacts}
			if family == "6" {
				kernel, groups = kernelPair6(t), append(groups, dualFacts)
				ours.serverIP, ours.clientIP, ours.other, ours.serverIP4 = "[fd00::11]", "[fd00::12]", "[fd00::99]", "10.0.0.11"
			}
			awaitMemory(t, hosts, ours)
			var ports, memory, errs [2]uint64
			for i, h := range hosts {
				ports[i], memory[i] = by(t, h)
				errs[i] = counted(h, "icmp_unreachables_sent")
			}
			compareFacts(t, kernel, ours, groups...)
			for i, h := range hosts {
				p, m := by(t, h)
				if p, m, e := p-ports[i], m-memory[i], counted(h, "icmp_unreachables_sent")-errs[i]; p > e || m < 100 {
					t.Errorf("host %d has sent %d frames by its port, of them at most %d ICMP errors, and %d by memory", i, p, e, m)
				}
				for _, name := range []string{"path_lies", "path_denied", "path_bad"} {
					if n := counted(h, name); n != 0 {
						t.Errorf("host %d has counted %s: %d", i, name, n)
					}
				}
			}
		})
	}
}

// awaitMemory exchanges text until frames come and go by memory.
func awaitMemory(t *testing.T, hosts [2]*unet.Host, w hostPair) {
	w.T = t
	c, s := w.tcp()
	testutil.Eventually(t, "frames by memory both ways", func() bool {
		for _, way := range [][2]tcpConn{{c, s}, {s, c}} {
			_, err := way[0].Write([]byte("x"))
			w.must(err)
			testutil.Renew(way[1])
			_, err = io.ReadFull(way[1], make([]byte, 1))
			w.must(err)
		}
		return counted(hosts[0], "path_frames_received") > 0 && counted(hosts[1], "path_frames_received") > 0
	})
}
