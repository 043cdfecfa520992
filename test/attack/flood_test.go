//go:build linux

package attack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
)

// repeatArg is a frame to send many times.
type repeatArg struct {
	Endpoint, Frames int
	Frame            []byte
}

// sendRepeatedly sends as fast as the kernel accepts frames.
var sendRepeatedly = newCommand("sendRepeatedly", func(a *agent, arg repeatArg) (sendResult, error) {
	return a.endpoints[arg.Endpoint].send(func(yield func(outFrame) bool) {
		for range arg.Frames {
			if !yield(outFrame{Frame: arg.Frame}) {
				return
			}
		}
	})
})

// claimManyArg is a tag with a wildcard, and how often to claim it.
type claimManyArg struct {
	Endpoint, Times int
	Tag             endpoint.Tag
}

// claimedMany is how many claims were granted, and why the next was not.
type claimedMany struct {
	Claims int
	Why    string
}

// claimMany claims until it is refused.
var claimMany = newCommand("claimMany", func(a *agent, arg claimManyArg) (g claimedMany, err error) {
	for ; g.Claims < arg.Times; g.Claims++ {
		ctx, cancel := timeout()
		_, err := a.endpoints[arg.Endpoint].lease.Claim(ctx, arg.Tag)
		cancel()
		if err != nil {
			g.Why = err.Error()
			break
		}
	}
	return g, nil
})

// reopenSegment opens a segment by O_PATH, closes everything else, and then repeatedly opens
// and closes it. A process that has a lease of the file (F_SETLEASE), as unetd does,
// gets a signal by that.
var reopenSegment = newCommand("reopenSegment", func(a *agent, arg keepArg) (opens int, err error) {
	g := a.endpoints[arg.Endpoint]
	path, err := unix.Open(procFD(int(g.grant.Segment.Fd())), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(path)
	if err := errors.Join(g.lease.Close(), g.close()); err != nil {
		return 0, err
	}
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); opens++ {
		fd, err := unix.Open(procFD(path), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == nil {
			unix.Close(fd)
		}
	}
	return opens, nil
})

func floodCases(attacker *attacker) []attackCase {
	to := func(etherType int, rest ...[]byte) []byte { return ether(linkB, linkA, etherType, rest...) }
	return []attackCase{
		{"flood of forged frames", "two processes send forged frames as fast as they can", func(s *caseRun) {
			s.sendFromTwo(lengthOf(2_000_000, 300_000, 30_000), func(t *target, m []byte) []byte {
				return to(typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(neighbourPort, discard, mark(forged, 0))))
			})
		}},
		{"flood of permitted frames", "two processes send permitted frames to host B as fast as they can", func(s *caseRun) {
			s.sendFromTwo(lengthOf(100_000, 50_000, 10_000), func(t *target, m []byte) []byte {
				return to(typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, m)))
			})
		}},
		{"flood at a limit", "a user with a limit of 10,000 packets a second sends permitted frames as fast as it can, by all four endpoints that it may have", func(s *caseRun) {
			s.floodAtLimit(lengthOf(200_000, 50_000, 10_000))
		}},
		{"ICMP errors about others' traffic", "every ICMP type and code, quoting the neighbour's and the kernel's packets to host B: in host B's name, and in the attacker's own; and errors that it may send, about packets to itself", func(s *caseRun) {
			forgeErrors(s, attacker)
		}},
		{"blocks of ports", "claimed by all endpoints that a user may have, until unetd refuses; each is 64 sockets in unetd", func(s *caseRun) {
			a := startAgent(s, s.pair.A, attackerID)
			blocks, whys := 0, map[string]int{}
			for range attackerEndpoints {
				g, err := openEndpoint.try(a, openArg{s.unetd.Socket, endpoint.Request{}})
				if err != nil {
					break // all that it may have
				}
				got := claimMany.do(s, a, claimManyArg{g.Endpoint, lengthOf(2000, 2000, 10), endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)).AsBlock()})
				blocks += got.Claims
				whys[got.Why]++
			}
			s.row.note("%d blocks, then %s; unetd has %d descriptors", blocks, countsText(whys), descriptorsOf(s, s.unetd.PID()))
			// The neighbour's next requests show whether there is room for others.
		}},
		{"segment opened again after the lease", "a segment's memfd is opened and closed repeatedly for half a second after the end of the lease, while unetd asks by a file lease whether a process has it", func(s *caseRun) {
			t := s.targetOf(s.freshAttacker(), endpoint.Request{}) // the user of the case before may still have all its endpoints
			n := reopenSegment.do(s, t.agentProcess, keepArg{Endpoint: t.Endpoint})
			s.row.note("%d opens", n)
		}},
	}
}

// forgeErrors sends ICMP errors that would harm others' connections if they were
// accepted: a path MTU of 68, unreachable hosts and ports.
func forgeErrors(s *caseRun, attacker *attacker) {
	others, own := s.forged("tx_forged_addr", "tx_forged_quote"), s.forged("tx_forged_quote", "tx_infrastructure")
	home := func(etherType int, rest ...[]byte) []byte { return ether(linkA, linkA, etherType, rest...) }
	for _, quote := range [][]byte{
		ipv4(hostA, hostB, protocolUDP, udp(neighbourPort, kernelPort, make([]byte, 64))),
		ipv4(hostA, hostB, protocolTCP, tcp(kernelPort, 40000)),
		ipv4(hostA, hostB, protocolUDP, udp(kernelPort, 40000)),
	} {
		for kind := range byte(19) {
			for code := range byte(16) {
				m := icmp4(kind, code, quote[:28])
				others.add(home(typeIPv4, ipv4(hostB, hostA, protocolICMP, m, others.mark())))
				if kind != 0 && kind != 8 { // echo is permitted
					own.add(home(typeIPv4, ipv4(attackerAddr, hostA, protocolICMP, m, own.mark())))
				}
			}
		}
	}
	quote6 := ipv6(hostA6, hostB6, protocolUDP, udp(neighbourPort, kernelPort, make([]byte, 64)))
	for kind := range byte(8) {
		for code := range byte(8) {
			m := icmp6(attackerAddr6, hostA6, kind, code, be32(1280), quote6)
			own.add(home(typeIPv6, ipv6(attackerAddr6, hostA6, protocolICMPv6, m, own.mark())))
		}
	}
	others.send(attacker)
	own.send(attacker)

	// A host may reject what was sent to it.
	v := s.permitted()
	for kind, code := range map[byte]byte{3: 3, 11: 1, 12: 0} {
		m := icmp4(kind, code, ipv4(hostB, attackerAddr, protocolUDP, udp(kernelPort, discard, v.mark())))
		v.add(ether(linkB, linkA, typeIPv4, ipv4(attackerAddr, hostB, protocolICMP, m)))
	}
	m := icmp6(attackerAddr6, hostB6, 1, 4, be32(0), ipv6(hostB6, attackerAddr6, protocolUDP, udp(kernelPort, discard, v.mark())))
	v.add(ether(linkB, linkA, typeIPv6, ipv6(attackerAddr6, hostB6, protocolICMPv6, m)))
	v.send(attacker)
}

// icmp4 is a message with a correct checksum and an MTU of 68.
func icmp4(kind, code byte, rest ...[]byte) []byte {
	m := join([]byte{kind, code, 0, 0, 0, 0, 0, 68}, join(rest...))
	binary.BigEndian.PutUint16(m[2:], ^sum(m))
	return m
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// sendFromTwo has two attackers send frames at once.
func (s *caseRun) sendFromTwo(frames int, frame func(t *target, m []byte) []byte) {
	s.Helper()
	var sending sync.WaitGroup
	var targets []*target
	for range 2 {
		targets = append(targets, s.target(endpoint.Request{}))
	}
	begin := time.Now()
	for _, t := range targets {
		m := mark(legal, s.newBatch())
		sending.Go(func() {
			if r, err := sendRepeatedly.try(t.agentProcess, repeatArg{t.Endpoint, frames, frame(t, m)}); err != nil || r.Errno != "" {
				s.Errorf("barrage: %s, %v", r.Errno, err)
			}
		})
	}
	sending.Wait()
	s.row.note("%d frames in %s", 2*frames, rounded(time.Since(begin)))
}

// floodAtLimit sends frames by all endpoints of a limited user. What reaches host B is at most what the limit permits
// in the time that it took.
func (s *caseRun) floodAtLimit(frames int) {
	s.Helper()
	const endpoints = 4
	var targets []*target
	for range endpoints {
		targets = append(targets, s.targetOf(limitedID, endpoint.Request{}))
	}
	number := s.newBatch()
	before, begin := s.counters(s), time.Now()
	var sending sync.WaitGroup
	for _, t := range targets {
		frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, mark(legal, number))))
		sending.Go(func() {
			if r, err := sendRepeatedly.try(t.agentProcess, repeatArg{t.Endpoint, frames, frame}); err != nil || r.Errno != "" {
				s.Errorf("barrage: %s, %v", r.Errno, err)
			}
		})
	}
	sending.Wait()
	var passed, refused, lost int
	all := testutil.Until(func() bool {
		counts := since(before, s.counters(s))
		refused = int(counts["tx_rate_endpoint"] + counts["tx_rate_user"])
		lost = int(counts["lost_port_backlog"] + counts["lost_port_redirect"])
		passed = s.capture.legalFrames(number)
		return passed+refused+lost >= endpoints*frames
	})
	took := time.Since(begin)
	// The buckets may be filled for a tick of the kernel's clock more, which is 10 ms at most.
	if most := limitedBurst + int(limitedRate*(took+10*time.Millisecond).Seconds()) + 1; !all || passed > most || passed+lost < limitedBurst {
		s.Errorf("of %d frames %d have left the uplink in %v, want %d to %d; %d were refused, and %d lost", endpoints*frames, passed, took, limitedBurst, most, refused, lost)
	}
	s.row.note("of %d frames %d have left the uplink in %s", endpoints*frames, passed, rounded(took))
}

// superCases are attacks from the wire on the work that the host does for endpoints.
func superCases(attacker *attacker) []attackCase {
	return []attackCase{{"super-frames of many parts", "host B sends frames of 60 kB to the attacker's endpoint, to be cut into parts of 1 byte and of 512", func(s *caseRun) {
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
		// Each frame is counted by one of these counters. The last ones may still wait in the
		// backlog of the uplink.
		var many, cut uint64
		if !testutil.Until(func() bool {
			counts := since(before, s.counters(s))
			many, cut = counts["rx_many_parts"], counts["rx_cut"]+counts["rx_cutter_busy"]
			return many >= uint64(n) && cut >= uint64(n)
		}) || many != uint64(n) || cut != uint64(n) {
			s.Errorf("of %d frames of each size: %d of too many parts, %d cut, or dropped because the cutter was busy", n, many, cut)
		}
		drain.do(s, attacker.agentProcess, endpointArg{attacker.Endpoint})
	}}}
}
