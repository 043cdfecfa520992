package perf

import (
	"cmp"
	"slices"
	"strings"
)

// Groups of functions.
const (
	Ours      = "unet (user)"
	Runtime   = "Go runtime"
	Benchmark = "benchmark"
	Waiting   = "waiting (spinning)"
	Copy      = "copy"
	Syscall   = "system call"
	AFXDP     = "AF_XDP"
	Veth      = "veth and backlog"
	XDP       = "generic XDP"
	TCX       = "tcx"
	Stack     = "kernel's TCP/IP"
	Interrupt = "interrupts, scheduler"
	Other     = "rest"
	Programs  = "program " // and the name
)

// kernelGroups are the groups of kernel functions by the begin of their names. The longest begin counts.
// Helpers that many use (allocation, locks) are in none: they belong to their callers.
var kernelGroups = map[string]string{
	"memcpy": Copy, "__memcpy": Copy, "memmove": Copy, "__memmove": Copy, "__pi_mem": Copy, "rep_movs": Copy, "copy_user": Copy, "_copy_from_iter": Copy, "_copy_to_iter": Copy,
	"copy_page_from_iter": Copy, "copy_page_to_iter": Copy, "csum_partial_copy": Copy, "_copy_from_user": Copy, "_copy_to_user": Copy,

	"entry_SYSCALL": Syscall, "do_syscall": Syscall, "syscall_": Syscall, "x64_sys_call": Syscall, "__x64_sys_": Syscall, "__sys_": Syscall,
	"sock_sendmsg": Syscall, "__sock_sendmsg": Syscall, "sock_recvmsg": Syscall, "sock_write_iter": Syscall, "sock_read_iter": Syscall,

	"xsk_": AFXDP, "__xsk_": AFXDP, "xskq_": AFXDP, "xp_": AFXDP, "__xp_": AFXDP, "xdp_umem": AFXDP,

	"veth_": Veth, "netif_rx": Veth, "__netif_rx": Veth, "enqueue_to_backlog": Veth, "process_backlog": Veth, "__napi_": Veth, "napi_": Veth, "net_rx_action": Veth,
	"handle_softirqs": Veth, "__do_softirq": Veth, "do_softirq": Veth, "__local_bh_enable_ip": Veth, "__netif_receive_skb": Veth, "netif_receive_skb": Veth,
	"__dev_forward_skb": Veth, "dev_forward_skb": Veth, "____dev_forward_skb": Veth, "eth_type_trans": Veth, "dev_queue_xmit": Veth, "__dev_queue_xmit": Veth,
	"__dev_direct_xmit": Veth, "dev_hard_start_xmit": Veth, "validate_xmit_skb": Veth, "sch_direct_xmit": Veth,

	"do_xdp_generic": XDP, "netif_receive_generic_xdp": XDP, "bpf_prog_run_generic_xdp": XDP, "netif_skb_check_for_xdp": XDP, "generic_xdp_": XDP,
	"xdp_": XDP, "dev_map_": XDP,

	"sch_handle_ingress": TCX, "tcx_": TCX, "tc_run": TCX, "skb_do_redirect": TCX,

	"tcp_": Stack, "__tcp_": Stack, "tcp4_": Stack, "udp_": Stack, "__udp_": Stack, "udp4_": Stack, "ip_": Stack, "__ip_": Stack, "ip4_": Stack,
	"inet_": Stack, "nf_": Stack, "neigh_": Stack, "arp_": Stack,

	"asm_sysvec_": Interrupt, "sysvec_": Interrupt, "asm_common_interrupt": Interrupt, "__irq_exit": Interrupt, "irq_exit": Interrupt, "schedule": Interrupt, "__schedule": Interrupt,
	"hrtimer_": Interrupt, "__hrtimer_": Interrupt, "tick_": Interrupt,
}

// kernelGroup is the group of a kernel function by its own name; "": none.
func kernelGroup(name string) string {
	for n := len(name); n > 0; n-- {
		if g, ok := kernelGroups[name[:n]]; ok {
			return g
		}
	}
	return ""
}

const module = "github.com/unet-go/unet"

// userGroup is the group of a function of a process by its own name; "": none.
func userGroup(name string) string {
	switch {
	case name == "runtime.memmove":
		return Copy
	case strings.HasPrefix(name, "internal/runtime/syscall") || strings.HasPrefix(name, "syscall.") || strings.HasPrefix(name, "golang.org/x/sys/unix."):
		return Syscall
	case strings.HasPrefix(name, "runtime.") || strings.HasPrefix(name, "internal/runtime/"):
		return Runtime
	case strings.HasPrefix(name, module+"/bench/") || strings.HasPrefix(name, "main."):
		return Benchmark
	case strings.HasPrefix(name, module):
		return Ours
	}
	return ""
}

// waits reports whether a function only waits for frames. What the loops call is named, too: a function without
// a stack frame hides its caller.
func waits(name string) bool {
	if !strings.HasPrefix(name, module) {
		return false
	}
	return strings.HasSuffix(name, ").spin") || strings.HasSuffix(name, ").Pending") || strings.Contains(name, "/internal/wait.") || strings.HasSuffix(name, ".(*floor).Recv")
}

// Place is where a sample was taken.
type Place struct{ Function, Group string }

// Of is the place of a sample: its innermost function, and the group of that function, or, if it has none, of the
// next caller that has one. Everything inside a loop that waits for frames is waiting.
func (s *Symbols) Of(x Sample) Place {
	if len(x.Kernel) > 0 {
		p := Place{Group: Other}
		for i, a := range x.Kernel {
			symbol := s.symbol(a)
			_, name, ok := program(symbol)
			if !ok {
				name = symbol
			}
			if i == 0 {
				p.Function = name
			}
			if ok {
				p.Group = Programs + name
				return p
			} else if g := kernelGroup(symbol); g != "" {
				p.Group = g
				return p
			}
		}
		return p
	}
	p := Place{Group: Other}
	var group string
	for i, a := range x.User {
		names := userFunctions(a, i == 0)
		if i == 0 {
			p.Function = "not of the program (vDSO)"
			if len(names) > 0 {
				p.Function = names[0]
			}
		}
		for _, name := range names {
			if waits(name) {
				p.Group = Waiting
				return p
			}
			if group == "" {
				group = userGroup(name)
			}
		}
	}
	if group != "" {
		p.Group = group
	}
	return p
}

// Share is how many samples a place or a group has.
type Share struct {
	Place
	Samples int
}

// Tally counts the samples of some processes by function and by group, the largest first.
func (s *Symbols) Tally(all []Sample, pids ...int) (functions, groups []Share) {
	byPlace, byGroup := map[Place]int{}, map[string]int{}
	for _, x := range all {
		if slices.Contains(pids, int(x.PID)) {
			p := s.Of(x)
			byPlace[p]++
			byGroup[p.Group]++
		}
	}
	for p, n := range byPlace {
		functions = append(functions, Share{p, n})
	}
	for g, n := range byGroup {
		groups = append(groups, Share{Place{Group: g}, n})
	}
	for _, list := range [][]Share{functions, groups} {
		slices.SortFunc(list, func(a, b Share) int {
			return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Function, b.Function), cmp.Compare(a.Group, b.Group))
		})
	}
	return functions, groups
}
