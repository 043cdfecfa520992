//go:build linux

package attack

import (
	"errors"
	"net/netip"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/account"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// resetCases are attacks by tables of connections that the attacker does not have: at the end of its endpoint unetd
// sends a RST for each.
func resetCases() []attackCase {
	return []attackCase{
		{"RSTs of a limited user", "a user limited to 10,000 packets a second publishes 262,143 false connections to host B, closes, and repeats", func(s *caseRun) {
			s.resetsInLoop(limitedID, hostB, limitedBurst, limitedRate)
		}},
		{"RSTs of a limited user to a neighbour", "the same with connections to the neighbour's owned address", func(s *caseRun) {
			s.resetsInLoop(limitedID, neighbourAddr, limitedBurst, limitedRate)
		}},
		{"RSTs of a user without rates", "the same to host B by a user for whom the policy has no rates", func(s *caseRun) {
			s.resetsInLoop(attackerID, hostB, 16384, 16384) // as docs/protection.md says
		}},
	}
}

// resetArg says to which address a number of leases, one after another, have connections.
type resetArg struct {
	Socket string
	Remote netip.Addr
	Times  int
}

// resetInLoop opens endpoints with full tables of false connections and closes them. It returns the number
// of connections of all tables.
var resetInLoop = newCommand("resetInLoop", func(_ *agent, arg resetArg) (connections int, err error) {
	table, err := datapath.NewConnections()
	if err != nil {
		return 0, err
	}
	defer table.Close()
	records := table.Records()
	for i := range records {
		records[i] = wire.Connection{
			Local: wire.AddrFrom(hostA), LocalPort: resetBlock + uint16(i%endpoint.BlockPorts),
			Remote: wire.AddrFrom(arg.Remote), RemotePort: uint16(1 + i/endpoint.BlockPorts), Protocol: wire.ProtocolTCP, State: 4,
		}
	}
	block := endpoint.TCPTag(netip.AddrPortFrom(hostA, resetBlock)).AsBlock()
	for range arg.Times {
		ctx, cancel := timeout() // for one lease: the one before may send RSTs for some seconds
		defer cancel()
		var grant *endpoint.Grant
		var lease endpoint.Lease
		for {
			grant, lease, err = control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry, Tags: []endpoint.Tag{block}, Connections: table.File()})
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return connections, err
			}
			time.Sleep(time.Millisecond) // the leases before have not ended, or hold the block
		}
		connections += len(records)
		if err := errors.Join(grant.Close(), lease.Close()); err != nil {
			return connections, err
		}
	}
	return connections, nil
})

// resetsInLoop expects that the RSTs of a user's ended endpoints are at most what its bucket permits, that each
// is counted as sent or not sent, and that the counters add up.
func (s *caseRun) resetsInLoop(uid uint32, remote netip.Addr, burst, rate int) {
	s.Helper()
	a := startAgent(s, s.pair.A, uid)
	before, seen, begin := s.counters(s), s.capture.resetsSoFar(), time.Now()
	connections := resetInLoop.do(s, a, resetArg{s.unetd.Socket, remote, lengthOf(20, 4, 2)})
	var sent, local, refused, wire int
	all := testutil.Until(func() bool {
		counts := since(before, s.counters(s))
		sent, local, refused = int(counts["mux_uplink"]), int(counts["mux_local"]), int(counts["mux_rate"])
		wire = s.capture.resetsSoFar() - seen
		// sent has solicitations for the peer's address, too
		return sent+local+refused >= connections && wire+local+refused >= connections
	})
	took := time.Since(begin)
	passed := max(sent, wire) + local
	// The buckets may be filled for a tick of the kernel's clock more, which is 10 ms at most.
	if most := burst + int(float64(rate)*(took+10*time.Millisecond).Seconds()) + 1; !all || passed > most || passed < min(burst, limitedBurst/2) {
		s.Errorf("of %d connections %d got a RST by the uplink (%d came) and %d on this host, want at most %d in %v; %d were not sent", connections, sent, wire, local, most, took, refused)
	}
	s.row.note("%d connections, %d RSTs in %s: %.0f a second, at most %d and a burst of %d", connections, passed, rounded(took), float64(passed)/took.Seconds(), rate, burst)
	verdict, err := account.Settle(s.Context(), func() ([]endpoint.Counter, error) {
		return control.Operator{Socket: s.unetd.Socket}.Counters(s.Context())
	})
	if err != nil || !verdict.Balanced() {
		s.Errorf("the counters do not add up: %+v, %v", verdict, err)
	}
}
