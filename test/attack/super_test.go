package attack

import (
	"bytes"

	"github.com/unet-go/unet/test/internal/unetd"
)

// superCases are attacks by a host on the wire on what is done for endpoints.
func superCases(armed *shooter) []attackCase {
	return []attackCase{{"super-frames of many parts", "host B sends frames of 60 kB to the attacker's endpoint, to be cut into parts of 1 byte and of 512", func(s *scene) {
		peer, err := s.pair.B.OpenSuper()
		if err != nil {
			s.Fatal(err)
		}
		defer peer.Close()
		n := lengthOf(20_000, 2_000, 200)
		frame := ether(linkA, linkB, typeIPv4, ipv4(hostB, hostA, protocolTCP, tcp(9, attackerPort, bytes.Repeat([]byte{'x'}, 60_000))))
		before := s.counters(s)
		for range n {
			for _, size := range []int{1, 512} {
				if err := peer.Send(frame, size); err != nil {
					s.Fatal(err)
				}
			}
		}
		// Each frame ends in one of these ways. The last ones may still wait in the backlog
		// of the uplink.
		var many, cut uint64
		if !unetd.Eventually(func() bool {
			counts := since(before, s.counters(s))
			many, cut = counts["rx_many_parts"], counts["rx_cut"]+counts["rx_cutter_busy"]
			return many >= uint64(n) && cut >= uint64(n)
		}) || many != uint64(n) || cut != uint64(n) {
			s.Errorf("of %d frames each: %d of too many parts, %d cut or not, for want of room", n, many, cut)
		}
		drain.do(s, armed.actor, gunArg{armed.Gun})
	}}}
}
