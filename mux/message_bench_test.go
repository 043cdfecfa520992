//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// The benchmarks of this file do all work of a message on one processor: one goroutine sends it on host A
// and receives it on host B, and the kernel carries it over the cable within the system call that sends. So
// nothing is waited for. In a virtual machine of one processor whose clock counts instructions
// (qemu -icount shift=0) the times in nanoseconds are numbers of instructions. docs/performance.md has them.

const benchPayload = 64 // bytes

// openBench is a mux on a host for the length of the benchmark.
func openBench(b *testing.B, h *netlab.Host, mode mux.Mode) *mux.Mux {
	b.Helper()
	m, err := mux.Open(mux.Config{Interface: h.Interface, NetNS: h.NS, Mode: mode})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	return m
}

// openMessages is an endpoint with one message tag.
func openMessages(b *testing.B, m *mux.Mux, a endpoint.Attachment, tag uint32) *datapath.Endpoint {
	b.Helper()
	grant, lease, err := m.OpenEndpoint(b.Context(), endpoint.Request{Attach: a, Tags: []endpoint.Tag{endpoint.MessageTag(tag)}})
	if err != nil {
		b.Fatal(err)
	}
	ep, err := datapath.Attach(grant, datapath.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ep.Close(); lease.Close() })
	return ep
}

// BenchmarkMessage is a U-Net message; kick-ns is the part of the time that is spent in the system call.
func BenchmarkMessage(b *testing.B) {
	for _, attach := range []endpoint.Attachment{endpoint.AttachPort, endpoint.AttachQueue} {
		b.Run(attach.String(), func(b *testing.B) {
			p := netlab.RequirePair(b, netlab.Config{})
			from := openMessages(b, openBench(b, p.A, mux.ModeTCX), attach, 1)
			to := openMessages(b, openBench(b, p.B, mux.ModeTCX), attach, 2)
			ch := from.NewChannel(p.B.LinkAddr, 2, 1, 1500)
			payload := make([]byte, benchPayload)
			var got [1]datapath.Message
			var kicks time.Duration
			one := func() {
				if err := from.Write(&ch, payload); err != nil {
					b.Fatal(err)
				}
				begin := time.Now()
				err := from.Flush()
				kicks += time.Since(begin)
				if err != nil {
					b.Fatal(err)
				}
				for deadline := begin.Add(testTimeout); to.Borrow(got[:]) == 0; {
					if time.Now().After(deadline) {
						b.Fatal("a message was lost")
					}
				}
				to.Return(&got[0])
			}
			measure(b, one, &kicks)
		})
	}
}

// BenchmarkKernelDatagram is a UDP datagram between sockets of the kernel, over a cable without a mux, or
// with one on host B that has endpoints, which the datagram does not concern.
func BenchmarkKernelDatagram(b *testing.B) {
	for _, mode := range []string{"none", "tcx"} {
		for _, more := range []bool{false, true} {
			if mode == "none" && more {
				continue
			}
			b.Run(fmt.Sprintf("%s/endpoints=%t", mode, more), func(b *testing.B) {
				p := netlab.RequirePair(b, netlab.Config{})
				if mode != "none" {
					m, err := mux.ParseMode(mode)
					if err != nil {
						b.Fatal(err)
					}
					on := openBench(b, p.B, m)
					if more {
						openMessages(b, on, endpoint.AttachPort, 1)
					}
				}
				server, err := p.B.ListenUDP(p.B.Addr.Addr().String() + ":9")
				if err != nil {
					b.Fatal(err)
				}
				client, err := p.A.Dial("udp", server.LocalAddr().String())
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { server.Close(); client.Close() })
				out, in := descriptor(b, client.(*net.UDPConn)), descriptor(b, server)
				payload, buf := make([]byte, benchPayload), make([]byte, 2048)
				var kicks time.Duration
				one := func() {
					begin := time.Now()
					_, err := unix.Write(out, payload)
					kicks += time.Since(begin)
					if err != nil {
						b.Fatal(err)
					}
					for deadline := begin.Add(testTimeout); ; {
						if _, err := unix.Read(in, buf); err == nil {
							return
						} else if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
							b.Fatal(err)
						}
					}
				}
				measure(b, one, &kicks)
			})
		}
	}
}

// measure reports the time of a call of one, and of that the time that one has added to kicks, less the
// time of two readings of the clock.
func measure(b *testing.B, one func(), kicks *time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 1000 {
		one()
	}
	*kicks = 0
	b.ResetTimer()
	for range b.N {
		one()
	}
	b.StopTimer()
	begin := time.Now()
	for range 1000 {
		time.Since(time.Now())
	}
	clock := float64(time.Since(begin)) / 1000
	b.ReportMetric(float64(*kicks)/float64(b.N)-clock/2, "kick-ns/op")
}

// descriptor is the descriptor of a socket, which stays open as long as c is.
func descriptor(b *testing.B, c *net.UDPConn) (fd int) {
	b.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(n uintptr) { fd = int(n) })
	}
	if err != nil {
		b.Fatal(err)
	}
	return fd
}
