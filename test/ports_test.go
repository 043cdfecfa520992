package test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// A user of unetd has a connection to a destination from each port that the policy
// gives, of blocks and then one by one, and as many to the next destination from the
// same ports. Then the error says what there are no more of.
func TestPolicyBoundsPorts(t *testing.T) {
	const ports = 20*endpoint.BlockPorts + 3 // more than the 1,024 that were once a lease's end
	p := netlab.RequirePair(t, netlab.Config{})
	d := unetd.Serve(t, p.A, unetd.Options{Policy: fmt.Sprintf(
		`rules: [{name: a, users: ["%d"], tags: ["tcp:*:*"], endpoints: 1, memory: 64MiB, ports: %d}]`, netlab.NobodyID, ports)})
	var host *unet.Host
	netlab.AsUser(netlab.NobodyID, func() {
		var err error
		if host, err = unet.Open(t.Context(), unet.Config{Socket: d.Socket}); err != nil {
			t.Fatal(err)
		}
	})
	defer host.Close()
	for i := range uint16(2) {
		to := netip.AddrPortFrom(p.B.Addr.Addr(), 80+i)
		server, err := p.B.Listen("tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		go func() {
			for {
				c, err := server.Accept()
				if err != nil {
					return
				}
				defer c.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		begun := time.Now()
		for n := range ports {
			c, err := host.DialTCP(ctx, netip.AddrPort{}, to)
			if err != nil {
				t.Fatalf("dial %d to %v: %v", n, to, err)
			}
			c.SetLinger(0)
			defer c.Close()
		}
		t.Logf("%d connections in %v", ports, time.Since(begun))
		_, err = host.DialTCP(ctx, netip.AddrPort{}, to)
		if !errors.Is(err, syscall.EADDRNOTAVAIL) || !errors.Is(err, control.ErrBusy) ||
			!strings.Contains(err.Error(), fmt.Sprintf("connect: cannot assign requested address: busy: uid %d has %d of at most %d tags", netlab.NobodyID, ports, ports)) {
			t.Errorf("one more to %v: %v", to, err)
		}
	}
}
