package attack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// TestAttacks runs all attacks beside the bystanders.
func TestAttacks(t *testing.T) {
	w := newWorld(t)
	loiter := startLoiterers(t, w)
	armed := (&scene{t, w, &row{}}).attacker(tagged(arsenal()...)) // for the cases that need no endpoint of their own
	cases := slices.Concat(
		forgedCases(armed), malformedCases(armed), hiddenCases(armed), descriptorCases(armed),
		ringCases(), memoryCases(), socketCases(), leftoverCases(), intruderCases(), policyCases(),
		controlCases(loiter), presentCases(), unreadCases(), crowdCases(), floodCases(armed), superCases(armed), runawayCases())
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { w.play(t, c) })
		select {
		case <-w.unetd.Done:
			t.Fatal("unetd has ended")
		default:
		}
	}
}

// arsenal is one tag of each kind.
func arsenal() []endpoint.Tag {
	return []endpoint.Tag{
		endpoint.UDPTag(netip.AddrPortFrom(hostA, attackerPort)),
		endpoint.TCPTag(netip.AddrPortFrom(hostA, attackerPort)),
		endpoint.UDPTag(netip.AddrPortFrom(hostA, attackerBlock)).AsBlock(),
		endpoint.TCPTag(netip.AddrPortFrom(hostA, attackerBlock)).AsBlock(),
		endpoint.UDPTag(netip.AddrPortFrom(hostA6, attackerPort)),
		endpoint.TCPTag(netip.AddrPortFrom(hostA6, attackerPort)),
		endpoint.AddrTag(attackerAddr),
		endpoint.AddrTag(attackerAddr6),
		endpoint.MessageTag(attackerTag),
	}
}
