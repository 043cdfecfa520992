//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/mux"
)

// interfaces examines one interface, or those that unetd could serve.
func interfaces(_ context.Context, e *examination) {
	if e.Interface != "" {
		e.area = e.Interface
		oneInterface(e, e.Interface)
		return
	}
	all, err := net.Interfaces()
	if err != nil {
		e.area = "interfaces"
		e.unseen("interfaces", err)
		return
	}
	examined := 0
	for _, i := range all {
		if _, err := mux.Inspect(i.Name); err != nil || !addressed(&i) {
			continue
		}
		examined++
		e.area = i.Name
		oneInterface(e, i.Name)
	}
	if examined == 0 {
		e.area = "interfaces"
		e.note("interfaces", "ip address add ADDRESS/LENGTH dev IF, or name one by --interface", "no Ethernet interface has an address")
	}
}

// addressed reports whether an interface has an address that other hosts can reach.
func addressed(i *net.Interface) bool {
	all, _ := i.Addrs()
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.IsGlobalUnicast()
	})
}

func oneInterface(e *examination, name string) {
	in, err := mux.Inspect(name)
	switch {
	case errors.Is(err, mux.ErrNoInterface):
		e.problem("interface", "choose one that ip link shows", "%v", err)
		return
	case errors.Is(err, mux.ErrNotEthernet):
		e.problem("interface", "choose an Ethernet interface", "%v", err)
		return
	case err != nil:
		e.unseen("interface", err)
		return
	}
	state(e, &in)
	mode(e, &in)
	offloads(e, &in)
	e.ok("MTU", "%d bytes%s", in.MTU, mtuRoom(&in))
	queues(e, &in)
	acceptLocal(e)
}

func state(e *examination, in *mux.Inspection) {
	what := "driver " + in.Driver
	if in.Kind != "device" {
		what = "a virtual link of kind " + in.Kind
	}
	if !in.Up {
		e.problem("interface", "ip link set dev "+in.Name+" up, and look at the cable and the switch", "%s, down or without a carrier", what)
	} else {
		e.ok("interface", "%s, up", what)
	}
	if in.PortOf != "" {
		e.note("port", "serve "+in.PortOf[strings.IndexByte(in.PortOf, ' ')+1:], "it is a port of %s, which has the addresses and takes all frames that no tag claims", in.PortOf)
	}
	addressesOf(e, in.Name)
}

func mode(e *examination, in *mux.Inspection) {
	switch {
	case errors.Is(in.Refused, mux.ErrInUse):
		e.ok("mode", "a running unetd serves the interface")
		return
	case errors.Is(in.Refused, mux.ErrForeignProgram) && servedHere(e, in.Name):
		e.ok("mode", "a running unetd serves the interface; its log says in which mode")
		return
	case errors.Is(in.Refused, mux.ErrForeignProgram):
		e.problem("mode", uplink.DetachAdvice(in.Name)+", use --mode tcx, or another --interface", "%v", in.Refused)
		return
	case errors.Is(in.Refused, os.ErrPermission):
		e.unseen("programs", fmt.Errorf("this process may not see which programs are attached to %s", in.Name))
	case in.Refused != nil:
		e.unseen("programs", in.Refused)
	}
	e.ok("mode", "auto chooses %v: %s", in.Mode, in.Because)
}

// servedHere reports whether a mux is pinned for an interface.
func servedHere(e *examination, name string) bool {
	list, err := mux.Pins(e.BPFFS)
	return err == nil && slices.ContainsFunc(list, func(p mux.PinState) bool { return p.Interface == name })
}

func offloads(e *examination, in *mux.Inspection) {
	switch {
	case in.Fixed != "":
		e.note("offloads", "use --mode auto or tcx", "the driver does not turn %s off, and XDP does not go together with it: only tcx mode works, and no queues", in.Fixed)
	case in.Hidden == "" && in.Merging == "":
		e.ok("offloads", "none that XDP does not go together with")
	case in.Mode == mux.ModeTCX:
		e.ok("offloads", "%s: they stay on in tcx mode", joined(in.Hidden, in.Merging))
	default:
		e.ok("offloads", "%s: unetd turns them off while it serves", joined(in.Hidden, in.Merging))
	}
}

func joined(lists ...string) string {
	return strings.Join(slices.DeleteFunc(lists, func(s string) bool { return s == "" }), ",")
}

// mtuRoom says what the MTU means for zero copy.
func mtuRoom(in *mux.Inspection) string {
	if in.ZeroCopy == "" {
		return "; queues can have zero copy"
	}
	return "; queues have no zero copy: " + in.ZeroCopy
}

func queues(e *examination, in *mux.Inspection) {
	if in.Active <= 1 || in.Kind != "device" {
		e.ok("queues", "%d of %d receive queues in use", in.Active, in.Queues)
		return
	}
	e.note("queues", "for an endpoint on queue N only: ethtool -X "+in.Name+" start N equal 1, or ethtool -L "+in.Name+" combined 1; docs/drivers.md",
		"%d of %d receive queues in use: ports get frames of all of them; an endpoint on a queue needs classification rules, which unetd inserts where the driver has them", in.Active, in.Queues)
}

// acceptLocal looks whether a killed unetd has left a setting of lo.
func acceptLocal(e *examination) {
	local, err := e.read("proc/sys/net/ipv4/conf/lo/accept_local")
	if err != nil {
		e.unseen("accept_local", err)
		return
	}
	if local != "0" && !anyServed(e) {
		e.note("accept_local", "sysctl -w net.ipv4.conf.lo.accept_local=0, if you did not set it", "accept_local of lo is %s: a killed unetd may have left it", local)
		return
	}
	e.ok("accept_local", "of lo it is %s; unetd sets it while it serves, so that endpoints reach programs of this host", local)
}

// anyServed reports whether a mux of this network namespace is pinned, or whether that cannot be seen.
func anyServed(e *examination) bool {
	list, err := mux.Pins(e.BPFFS)
	return err != nil || slices.ContainsFunc(list, func(p mux.PinState) bool { return p.Here })
}
