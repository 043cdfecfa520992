package mux

import (
	"fmt"
	"net/netip"

	"github.com/unet-go/unet/internal/nat"
)

// Network address translation gives ports of the host's addresses to flows of others, and
// bind does not see it (ADR 27). A claim keeps clear of ports that it uses at the time. About those that it may
// use later the policy is asked ([Claims].Translated).

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

// showTranslation logs that network address translation may use ports of the uplink's
// address, if so, and there is a policy to say what that means. Claims look again.
func (m *Mux) showTranslation() error {
	own, err := m.addresses()
	if err != nil {
		return err
	}
	a, found := own.first(netip.Addr{})
	if !found {
		return nil
	}
	ports, err := m.translation(own, nil)
	switch {
	case err != nil:
		m.log.Error("cannot ask what network address translation does, and ports cannot be claimed", "interface", m.up.name, "error", err)
	case ports[a].MayUseBy() != "":
		m.log.Warn("network address translation on this host may use ports for others: claims of these ports are refused, unless the user's rule says nat: warn",
			"interface", m.up.name, "addr", a, "by", ports[a].MayUseBy())
	}
	return nil
}
