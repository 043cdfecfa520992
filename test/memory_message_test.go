//go:build linux

package test

import (
	"errors"
	"testing"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// Two endpoints of one unetd exchange messages by memory, and by their ports with UNET_MEMORY=off.
func TestMessagesOfOneHost(t *testing.T) {
	for _, memory := range []string{"on", "off"} {
		t.Run(memory, func(t *testing.T) {
			t.Setenv("UNET_MEMORY", memory)
			pair := netlab.RequirePair(t, netlab.Config{})
			_, socket := daemon(t, pair.A)
			var eps [2]*datapath.Endpoint
			for i := range eps {
				ep, _ := attachLeased(t, socket, tagged(uint32(i+1), endpoint.AttachPort))
				eps[i] = ep
			}
			ch := eps[0].NewChannel(pair.A.LinkAddr, 2, 1, 1500)
			trip := func() {
				testutil.Must(t, errors.Join(eps[0].Write(&ch, []byte("text")), eps[0].Flush()))
				m := recvMessage(t, eps[1])
				back := eps[1].ReplyChannel(&m)
				err := errors.Join(eps[1].Write(&back, m.Payload()), eps[1].Flush())
				eps[1].Return(&m)
				testutil.Must(t, err)
				m = recvMessage(t, eps[0])
				eps[0].Return(&m)
			}
			if memory == "off" {
				for range 200 {
					trip()
				}
				if c := eps[0].PathCounters(); c != nil {
					t.Errorf("counters of paths: %v", c)
				}
				return
			}
			testutil.Eventually(t, "messages by memory", func() bool {
				trip()
				for _, c := range eps[0].PathCounters() {
					if c.Name == "path_frames_received" && c.Value > 0 {
						return true
					}
				}
				return false
			})
		})
	}
}

// attachLeased is attach with the lease in the endpoint's Config.
func attachLeased(t *testing.T, socket string, req endpoint.Request) (*datapath.Endpoint, endpoint.Lease) {
	t.Helper()
	grant, lease, err := control.Open(t.Context(), socket, req)
	testutil.Must(t, err)
	ep, err := datapath.Attach(grant, datapath.Config{Lease: lease})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, errors.Join(ep.Close(), lease.Close())) })
	return ep, lease
}
