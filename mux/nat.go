package mux

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
)

// Network address translation gives ports of the host's addresses to flows of others, and
// bind does not see it (ADR 27). A claim keeps clear of ports that it uses at the time. Those that it may
// use later are for whoever decides about claims to ask about (Translation).

// translation asks what translation does with the ports of the uplink's addresses, and of
// addresses that are being claimed whole.
func (m *Mux) translation(own addresses, whole []netip.Addr) (ports map[netip.Addr]*nat.Ports, err error) {
	shared := make([]netip.Addr, len(own.uplink))
	for i, p := range own.uplink {
		shared[i] = p.Addr()
	}
	err = within(m.ns, func() (err error) {
		ports, err = m.nat.Look(shared, whole)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("network address translation: %w", err)
	}
	return ports, nil
}

// Translation is what network address translation does with the ports of an address of the
// uplink, as far as it can be seen; nil if a is none. A claim of a port that is in use
// by it is refused. To refuse one that it may use is for the caller of OpenEndpointFor and
// Claim.
func (m *Mux) Translation(a netip.Addr) (*nat.Ports, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	own, err := m.addresses()
	if err != nil {
		return nil, err
	}
	ports, err := m.translation(own, nil)
	return ports[a], err
}

// translated says that a port of t is in use by translation. The kernel would say of
// a port in use what this error says.
func (r *reserver) translated(t endpoint.Tag) error {
	if !r.nat[t.Addr].InUse(t) {
		return nil
	}
	return fmt.Errorf("%w: %v: network address translation of this host uses it for others (nft list ruleset, conntrack -L): choose another: %w",
		endpoint.ErrTagHeld, t, unix.EADDRINUSE)
}
