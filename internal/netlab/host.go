//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// AnyCPU as the processor of [Host.StartOn] leaves a process unpinned.
const AnyCPU = -1

// Host is one of the two ends of a [Pair], or the middle of its cable, which has
// only Name and NS. Its methods may be called from any goroutine.
type Host struct {
	Name      string         // "a", "b" or "middle"
	Interface string         // its end of the cable
	Addr      netip.Prefix   // of Interface
	Addr6     netip.Prefix   // of Interface; not valid unless asked for
	LinkAddr  wire.LinkAddr  // of Interface
	linkLocal netip.Prefix   // of Interface; not valid unless asked for
	NS        netns.NsHandle // owned by the Pair; closed with it

	mu     sync.Mutex    // NS stays open while it is held
	starts chan start    // to the starter thread
	closed chan struct{} // closed by Close
	ended  chan struct{} // closed by the starter when it has left the namespace
	tid    int           // of the starter
}

// ErrClosed is the error of a host whose pair was closed.
var ErrClosed = errors.New("netlab: pair is closed")

// IP is the IPv6 address of the host's end of the cable, or the IPv4 address if it has none.
func (h *Host) IP() netip.Addr {
	if h.Addr6.IsValid() {
		return h.Addr6.Addr()
	}
	return h.Addr.Addr()
}

// Do runs fn inside the host, on the calling goroutine, which is locked to its
// thread meanwhile. Sockets that fn opens stay in the host after the call;
// goroutines that fn starts run outside.
func (h *Host) Do(fn func() error) (err error) {
	home, err := enterHome()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, home.leave()) }() // also when fn panics or a test ends in it
	if err := h.enter(); err != nil {
		return err
	}
	return fn()
}

// enter moves the calling, locked thread into the host.
func (h *Host) enter() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.NS.IsOpen() {
		return ErrClosed
	}
	if err := unix.Setns(int(h.NS), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter host %s: %w", h.Name, err)
	}
	return nil
}

// NewHost makes a host without a cable, for interfaces that its caller makes. It has no IPv6.
// The caller closes it.
func NewHost(name string) (*Host, error) {
	h := &Host{Name: name, NS: netns.None()}
	if err := h.open(); err != nil {
		return nil, fmt.Errorf("namespace of host %s: %w", name, err)
	}
	err := h.Do(func() error {
		if err := disableIPv6(); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("host %s: %w", name, err), h.Close())
	}
	return h, nil
}

// start is a request to the starter thread.
type start struct {
	cmd *exec.Cmd
	cpu int
	err chan error
}

// openStarter starts the thread on which all of the host's processes are
// started. A process inherits namespace and affinity from the thread that
// forks it, and PR_SET_PDEATHSIG fires when that *thread* ends: it has to be
// one that lives as long as the host.
func (h *Host) openStarter() error {
	h.starts = make(chan start)
	h.closed = make(chan struct{})
	h.ended = make(chan struct{})
	ready := make(chan error)
	go h.serveStarts(ready)
	return <-ready
}

// Starter is the thread that starts the host's processes, which inherit what is attached to it.
func (h *Host) Starter() int { return h.tid }

// serveStarts is the starter thread.
func (h *Host) serveStarts(ready chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The process's first thread is what /proc/self shows to others, so it
		// stays where it is. While this goroutine holds it, the next gets another.
		again := make(chan struct{})
		go func() {
			defer close(again)
			h.serveStarts(ready)
		}()
		<-again
		return
	}
	defer close(h.ended)
	home, err := enterHome()
	if err != nil {
		ready <- err
		return
	}
	defer home.leave()
	if err := h.enter(); err != nil {
		ready <- err
		return
	}
	h.tid = unix.Gettid()
	close(ready)
	var started []*os.Process
	for {
		select {
		case s := <-h.starts:
			err := startPinned(s.cmd, s.cpu)
			if err == nil {
				started = append(started, s.cmd.Process)
			}
			s.err <- err
		case <-h.closed:
			for _, p := range started {
				p.Kill() // an error means that it has ended already
			}
			return
		}
	}
}

// startPinned starts cmd from the calling, locked thread.
func startPinned(cmd *exec.Cmd, cpu int) (err error) {
	if cpu != AnyCPU {
		var usual, one unix.CPUSet
		if err := unix.SchedGetaffinity(0, &usual); err != nil {
			return fmt.Errorf("sched_getaffinity: %w", err)
		}
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return fmt.Errorf("pin to processor %d: %w", cpu, err)
		}
		defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &usual)) }()
	}
	return cmd.Start()
}

// Start starts cmd inside the host. The caller waits for it; what still runs
// when the pair is closed is killed.
func (h *Host) Start(cmd *exec.Cmd) error { return h.StartOn(cmd, AnyCPU) }

// StartOn starts cmd inside the host, pinned to one processor. A Go program
// pinned from its first instruction on sees a machine of one processor.
func (h *Host) StartOn(cmd *exec.Cmd, cpu int) error {
	s := start{cmd, cpu, make(chan error, 1)}
	select {
	case h.starts <- s:
		return <-s.err
	case <-h.ended:
		return ErrClosed
	}
}

// Close kills the processes on a host of NewHost and closes its namespace, once. [Pair.Close] closes
// those of a pair.
func (h *Host) Close() error {
	if h.closed != nil {
		close(h.closed)
		<-h.ended
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.NS.IsOpen() {
		return nil
	}
	return h.NS.Close() // which also marks it closed
}

// KnownNamespaces is how many other network namespaces the host's has numbers for
// (RTM_GETNSID). It has one for each in which the other end of one of its veth pairs is.
func (h *Host) KnownNamespaces() (n int, err error) {
	err = h.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
		req.AddData(nl.NewRtGenMsg())
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
		n = len(msgs)
		return err
	})
	return n, err
}

// UseCongestion sets the congestion control of all TCP connections that the host's kernel
// opens over the cable from now on. It is an attribute of the routes: the sysctl of a
// namespace takes only algorithms that the machine allows to all.
func (h *Host) UseCongestion(name string) error {
	err := h.Do(func() error {
		link, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		if len(routes) == 0 {
			return errors.New("no routes")
		}
		for _, r := range routes {
			if r.Dst != nil && r.Dst.IP.IsMulticast() {
				continue
			}
			r.Congctl = name
			if err := netlink.RouteReplace(&r); err != nil {
				return fmt.Errorf("route %v: %w", r.Dst, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("congestion control %s on host %s: %w", name, h.Name, err)
	}
	return nil
}

// Counted is a counter of the host's kernel by its name in nstat(8): the protocol
// and the name in /proc/net/snmp and /proc/net/netstat ("UdpInCsumErrors"), or the
// name in /proc/net/snmp6 ("Udp6InCsumErrors").
func (h *Host) Counted(name string) (n uint64, err error) {
	err = h.Do(func() error {
		for _, file := range []string{"snmp", "netstat"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			lines := strings.Split(string(text), "\n")
			for i := 0; i+1 < len(lines); i += 2 { // names, then values
				names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
				for k := 1; k < len(names); k++ {
					if strings.TrimSuffix(names[0], ":")+names[k] == name {
						n, err = strconv.ParseUint(values[k], 10, 64)
						return err
					}
				}
			}
		}
		text, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil && !os.IsNotExist(err) { // a kernel without IPv6
			return err
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == name {
				n, err = strconv.ParseUint(f[1], 10, 64)
				return err
			}
		}
		return fmt.Errorf("the kernel does not count %s", name)
	})
	return n, err
}

// Processors lists the processors that this process may run on, in ascending
// order. (runtime.NumCPU is only their number.)
func Processors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var cpus []int
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
