package attack

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// TestAfterARestart is what attackers could hope for from a restart of unetd: that it
// forgets what they have, and so lets them have more, or that they keep what they do not
// present again.
func TestAfterARestart(t *testing.T) {
	row := results.add(t, "hopes for a restart", "a user who has all that he may have asks the next unetd for more; a process that sleeps does not present its endpoint again")

	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy, Flags: []string{"--grace", "3s"}})
	w := &world{pair: pair, unetd: d, ear: startCapture(t, pair.B), kernel: startKernelTraffic(t, pair)}
	before := w.look(t)

	greedy := cast(t, pair.A, attackerID)
	had := 0
	for ; had <= attackerEndpoints; had++ {
		if _, err := openGun.try(greedy, openArg{d.Socket, endpoint.Request{}}); err != nil {
			break
		}
	}
	sleeper := cast(t, pair.A, neighbourID)
	asleep := openGun.do(t, sleeper, openArg{d.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourPort)))})
	if err := sleeper.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	d.Kill(t)
	d.Start(t)

	awake := func() (n int, sleeps bool) {
		for _, e := range list(t, d) {
			if e.UID == attackerID && e.Leased {
				n++
			}
			sleeps = sleeps || e.ID == asleep.ID
		}
		return n, sleeps
	}
	if !unetd.Eventually(func() bool { n, _ := awake(); return n == had }) {
		t.Fatalf("unetd lists %+v", list(t, d))
	}
	if _, err := openGun.try(cast(t, pair.A, attackerID), openArg{d.Socket, endpoint.Request{}}); had != attackerEndpoints || !errors.Is(err, control.ErrBusy) {
		t.Errorf("one more than %d of %d endpoints: %v, want busy", had, attackerEndpoints, err)
	}
	row.note("%d endpoints before, no more afterwards", had)

	if !unetd.Eventually(func() bool { _, sleeps := awake(); return !sleeps }) {
		t.Error("the sleeper's endpoint was not reclaimed")
	}
	if err := sleeper.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	why, err := lost.try(sleeper, gunArg{asleep.Gun})
	if err != nil {
		t.Errorf("the sleeper was not told: %v", err)
	}
	row.note("the sleeper, when it woke: %s", why)
	frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(neighbourPort, discard, mark(forged, 1))))
	row.note("what it sends then: %s", fire.do(t, sleeper, fireArg{asleep.Gun, []shot{{Frame: frame}}}).Errno)
	newcomer := cast(t, pair.A, neighbourID)
	openGun.do(t, newcomer, openArg{d.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourPort)))})
	w.unharmed(t, row, before)
}
