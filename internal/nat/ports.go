//go:build linux

package nat

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// Link is the interface that the frames come from.
type Link struct {
	Name  string
	Index int
}

// Ports are the ports of one address that translation uses, or may use.
type Ports struct {
	inUse, may [protocols]*set // ports in use, and ports that may be used later; nil: none, as of most addresses
	mayBy      string          // the first rule that may use ports; "": none
	unread     string          // the first rules that could not be evaluated, and why; "": none
}

// Indexes of the protocols.
const (
	udp = iota
	tcp
	protocols
)

func protocol(t endpoint.Tag) int {
	if t.Kind == endpoint.TagTCP {
		return tcp
	}
	return udp
}

// set is a set of ports.
type set [1 << 16 / 64]uint64

var everyPort = ports(0, 1<<16-1)

func ports(first, last uint16) (s set) {
	s.add(first, last)
	return s
}

func (s *set) add(first, last uint16) {
	for port := int(first); port <= int(last); port++ {
		s[port/64] |= 1 << (port % 64)
	}
}

// any reports whether s has one of the ports. s may be nil.
func (s *set) any(first, last uint16) bool {
	if s == nil {
		return false
	}
	for port := int(first); port <= int(last); port++ {
		if s[port/64]&(1<<(port%64)) != 0 {
			return true
		}
	}
	return false
}

// InUse reports whether translation uses a port of t, a tag of a port or a block. A port is free
// again when its flow has ended.
func (p *Ports) InUse(t endpoint.Tag) bool {
	return p != nil && p.inUse[protocol(t)].any(t.Port, t.LastPort())
}

// MayUse reports whether translation may use a port of t later. If not all rules could be
// evaluated, it may use every port.
func (p *Ports) MayUse(t endpoint.Tag) bool {
	return p != nil && (p.unread != "" || p.may[protocol(t)].any(t.Port, t.LastPort()))
}

// MayUseBy names a rule by which translation may use ports later; "": there is none.
func (p *Ports) MayUseBy() string {
	if p == nil {
		return ""
	}
	return cmp.Or(p.mayBy, p.unread)
}

// Empty reports whether the flows and the evaluated rules use and may use none of the address's
// ports.
func (p *Ports) Empty() bool {
	return p == nil || p.mayBy == "" && p.inUse == [protocols]*set{}
}

// made is the set at s, which is made if it is nil.
func made(s **set) *set {
	if *s == nil {
		*s = new(set)
	}
	return *s
}

func (p *Ports) addUnread(what string) { p.unread = cmp.Or(p.unread, what) }

func (p *Ports) addMay(by string, which [protocols]bool, first, last uint16) {
	p.mayBy = cmp.Or(p.mayBy, by)
	for i, is := range which {
		if is {
			made(&p.may[i]).add(first, last)
		}
	}
}

// fresh is the time for which an answer is used again, so that a thousand claims do not read a
// large table a thousand times. A new answer would be little better: the next flow can begin just
// after it.
const fresh = time.Second

// Reader reads the translated ports of one interface.
type Reader struct {
	link Link

	mu    sync.Mutex // held during requests to the kernel
	asked time.Time  // +checklocks:mu
	// +checklocks:mu
	known map[netip.Addr]*Ports // of shared addresses
}

// NewReader makes a reader.
func NewReader(link Link) *Reader { return &Reader{link: link} }

// Look returns the ports of shared, the interface's addresses, and of owned, addresses that are
// not the host's. If owned is empty the answer may be a second old. The calling thread is in
// the interface's namespace.
func (r *Reader) Look(shared, owned []netip.Addr) (map[netip.Addr]*Ports, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(owned) == 0 && time.Since(r.asked) < fresh && r.knows(shared) {
		return r.known, nil
	}
	found := map[netip.Addr]*Ports{}
	for _, a := range shared {
		found[a] = &Ports{}
	}
	for _, a := range owned {
		found[a] = &Ports{}
	}
	if err := r.ask(found, shared, owned); err != nil {
		return nil, err
	}
	r.known, r.asked = maps.Clone(found), time.Now()
	for _, a := range owned {
		delete(r.known, a) // as an address of the host it would have another answer
	}
	return found, nil
}

// +checklocks:r.mu
func (r *Reader) knows(addrs []netip.Addr) bool {
	for _, a := range addrs {
		if r.known[a] == nil {
			return false
		}
	}
	return true
}

// +checklocks:r.mu
func (r *Reader) ask(found map[netip.Addr]*Ports, shared, owned []netip.Addr) error {
	if err := readFlows(found); err != nil {
		return err
	}
	rules, err := readRules()
	if err != nil {
		return err
	}
	for _, a := range shared {
		rules.apply(found[a], r.link, a, true)
	}
	for _, a := range owned {
		rules.apply(found[a], r.link, a, false)
	}
	return legacy(found)
}

// legacy looks for a nat table of iptables-legacy, which cannot be read. The kernel makes the
// table of a network namespace at the first request for it in that namespace.
func legacy(found map[netip.Addr]*Ports) error {
	for name, is := range map[string]func(netip.Addr) bool{"ip_tables": netip.Addr.Is4, "ip6_tables": netip.Addr.Is6} {
		tables, err := os.ReadFile("/proc/thread-self/net/" + name + "_names")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) { // only root may read it
			continue
		}
		if err != nil {
			return err
		}
		if !slices.Contains(strings.Fields(string(tables)), "nat") {
			continue
		}
		for a, ports := range found {
			if is(a) {
				ports.addUnread("the nat table of " + name + " (iptables-legacy), which cannot be read")
			}
		}
	}
	return nil
}
