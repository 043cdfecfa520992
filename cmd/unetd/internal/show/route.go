//go:build linux

package show

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

// RouteQuestion is what unetd route asks.
type RouteQuestion struct {
	Socket    string
	Interface string     // empty: all interfaces of unetd
	From, To  netip.Addr // To not valid: only the addresses of the interfaces
}

// Routes writes how endpoints reach a destination, and how the kernel does.
func Routes(ctx context.Context, q RouteQuestion, w io.Writer, asJSON bool) error {
	list, err := control.Routes(ctx, q.Socket, q.Interface, q.From, q.To)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(w, list)
	}
	var b strings.Builder
	for _, r := range list {
		routeOf(&b, r)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// routeOf writes the addresses of one uplink, or its route. The lines of endpoints and of the kernel have the words of
// ip-route(8).
func routeOf(b *strings.Builder, r endpoint.UplinkRoute) {
	line := func(label, text string, args ...any) {
		fmt.Fprintf(b, "  %-9s  %s\n", label, fmt.Sprintf(text, args...))
	}
	fmt.Fprintln(b, r.Interface)
	k := r.Kernel
	if k == nil && r.Error == "" {
		label := "addresses"
		for _, a := range r.Addrs {
			line(label, "%s", strings.Join(append([]string{a.Prefix.String()}, a.Flags...), " "))
			label = ""
		}
		if more := r.AddrsTotal - len(r.Addrs); more > 0 {
			line("", "and %d more", more)
		}
		if r.AddrsTotal == 0 {
			line(label, "none")
		}
		return
	}
	if r.Route != nil {
		line("endpoint", "via %v lladdr %v src %v mtu %d", r.Route.NextHop, r.Route.LinkAddr, r.Route.Source, r.Route.MTU)
	} else {
		line("endpoint", "%s", r.Error)
	}
	switch {
	case k == nil: // the uplink cannot be used
		return
	case k.Interface == "":
		line("kernel", "%s", k.Error)
		return
	}
	kind, src := "", ""
	if k.Type != "unicast" {
		kind = k.Type + " "
	}
	if k.Source.IsValid() {
		src = fmt.Sprintf(" src %v", k.Source)
	}
	line("kernel", "%svia %v dev %s%s mtu %d", kind, k.NextHop, k.Interface, src, k.MTU)
	for _, text := range differences(r) {
		line("differs", "%s", text)
	}
}

// differences are the differences between the route of endpoints and the kernel's, a line each.
func differences(r endpoint.UplinkRoute) (lines []string) {
	k, e := r.Kernel, r.Route
	switch {
	case e == nil && k.Type == "local":
		return []string{"an address of this host: use kernel sockets"}
	case e == nil && k.Interface != r.Interface:
		return []string{fmt.Sprintf("by %s: unetd serve --interface %s, or kernel sockets", k.Interface, k.Interface)}
	case e == nil:
		return nil
	}
	if k.Source.IsValid() && k.Source != e.Source {
		lines = append(lines, fmt.Sprintf("the source, %v", e.Source))
	}
	if e.NextHop != k.NextHop {
		lines = append(lines, fmt.Sprintf("the next hop: a rule for the source %v (ip rule)", e.Source))
	}
	if e.MTU != k.MTU && k.Type != "local" {
		lines = append(lines, fmt.Sprintf("the MTU, by %d bytes", int64(e.MTU)-int64(k.MTU)))
	}
	return lines
}
