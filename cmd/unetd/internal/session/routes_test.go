//go:build linux

package session

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// Everybody with a rule may ask for routes, without a lease, on the connections that operators use, and not on that of a
// lease. The answer has as many addresses as fit.
func TestRoutes(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	p.hook(hooks{route: func(_ context.Context, dst netip.Addr) (endpoint.Route, error) {
		return endpoint.Route{NextHop: dst, MTU: 1500}, nil
	}})
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	permitAll(t, socket)
	list, err := control.Routes(t.Context(), socket, "eth7", localAddr, remoteAddr)
	if err != nil || len(list) != 1 || list[0].Interface != "eth7" || list[0].AddrsTotal != 300 || len(list[0].Addrs) != maxRouteAddrs || list[0].Route.NextHop != remoteAddr || list[0].Route.Source != localAddr {
		t.Errorf("%+v, %v", list, err)
	}
	as(t, 1001, func() {
		if list, err := control.Routes(t.Context(), socket, "", netip.Addr{}, netip.Addr{}); err != nil || len(list) != 1 || list[0].Route != nil {
			t.Errorf("a user: %+v, %v", list, err)
		}
		if _, err := control.Routes(t.Context(), socket, "", netip.Addr{}, netip.IPv6Unspecified()); !errors.Is(err, endpoint.ErrUnreachable) {
			t.Errorf("a destination of no host: %v", err)
		}
	})
	as(t, strangerID, func() {
		if _, err := control.Routes(t.Context(), socket, "", netip.Addr{}, remoteAddr); !errors.Is(err, os.ErrPermission) {
			t.Errorf("without a rule: %v", err)
		}
	})
	for _, c := range []string{
		`{"v":1,"id":1,"op":"route","source":"10.0.0.1"}`,
		`{"v":1,"id":1,"op":"route","addr":"10.0.0"}`,
		`{"v":1,"id":1,"op":"route","addr":"10.0.0.2","after":1}`,
		`{"v":1,"id":1,"op":"resolve","addr":"10.0.0.2","interface":"eth0"}`,
	} {
		a := connect(t, socket)
		a.send(c)
		a.wantError(1, "protocol")
	}
	a := connect(t, socket)
	a.open()
	a.send(`{"v":1,"id":2,"op":"route"}`)
	a.wantError(2, "protocol")
}
