//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
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
		if _, err := mux.Inspect(i.Name); err != nil || len(addresses(&i)) == 0 {
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

// addresses are those of an interface that other hosts can reach.
func addresses(i *net.Interface) (texts []string) {
	all, _ := i.Addrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			texts = append(texts, n.String())
		}
	}
	return texts
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
	interrupts(e, name)
	filters(e, name)
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
	i, err := net.InterfaceByName(in.Name)
	if err != nil {
		e.unseen("addresses", err)
		return
	}
	if list := addresses(i); len(list) > 0 {
		e.ok("addresses", "%s", strings.Join(list, ", "))
		return
	}
	e.note("addresses", "ip address add ADDRESS/LENGTH dev "+in.Name, "none: applications can only claim owned addresses and message tags")
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

// interrupts reads on which processors the interrupts of a card are handled.
func interrupts(e *examination, name string) {
	files, err := os.ReadDir(filepath.Join(e.root, "/", "sys/class/net", name, "device/msi_irqs"))
	if errors.Is(err, fs.ErrNotExist) {
		return // a virtual link, or one without such interrupts
	}
	if err != nil {
		e.unseen("interrupts", err)
		return
	}
	list, _ := e.read("sys/devices/system/cpu/isolated")
	isolated, err := policy.ParseQueues(list) // processors, in the same format as queues
	if err != nil {
		isolated = policy.Queues{} // none
	}
	on := map[string]int{}
	for _, f := range files {
		cpus, err := e.read("proc/irq/" + f.Name() + "/effective_affinity_list")
		if err != nil {
			cpus, err = e.read("proc/irq/" + f.Name() + "/smp_affinity_list")
		}
		if err != nil || cpus == "" {
			continue
		}
		on[cpus]++
		if n, err := strconv.ParseUint(cpus, 10, 32); err == nil && isolated.Has(uint32(n)) {
			e.note("interrupts", fmt.Sprintf("echo LIST > /proc/irq/%s/smp_affinity_list", f.Name()), "interrupt %s is handled on processor %s, which is isolated", f.Name(), cpus)
		}
	}
	if len(on) == 1 && len(files) > 2 { // more than one queue, and one of the device itself
		for cpus := range on {
			e.note("interrupts", "start irqbalance, or write other processors to /proc/irq/N/smp_affinity_list", "all %d interrupts are handled on processors %s", len(files), cpus)
		}
		return
	}
	e.ok("interrupts", "%d, on %d sets of processors", len(files), len(on))
}

// filters reads the settings of the kernel's source checks.
func filters(e *examination, name string) {
	all, err := e.read("proc/sys/net/ipv4/conf/all/rp_filter")
	own, ownErr := e.read("proc/sys/net/ipv4/conf/" + name + "/rp_filter")
	local, localErr := e.read("proc/sys/net/ipv4/conf/lo/accept_local")
	if err := errors.Join(err, ownErr, localErr); err != nil {
		e.unseen("rp_filter", err)
		return
	}
	e.ok("rp_filter", "%s is %s, all is %s: they apply to the kernel's own traffic, not to that of endpoints", name, own, all)
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
