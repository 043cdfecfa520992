//go:build linux

// Package attack attacks the protection boundary: processes without privileges, which
// have only what a grant gives, try to break the promises of docs/protection.md
// against a real unetd.
//
//	go test ./test/attack -v -attack.long
//
// `make attack` runs it like this. `make test` runs the short form, with unetdebug and under
// the race detector.
//
// [TestAttacks] runs the cases one after another. An attacker is a process without
// privileges that was granted an endpoint. It writes into its rings and its
// segment directly, makes system calls with its descriptors, and sends arbitrary records
// to unetd's socket. Bystanders run at the same time:
//
//   - a neighbour, which is a process of another user with endpoints of its own: it
//     exchanges datagrams and messages with host B, checks every byte, and at
//     intervals requests a route, a tag and another endpoint from unetd;
//   - kernel traffic on the same interface: ping, a UDP and a TCP service.
//
// None of them may lose a byte or receive one of others, and no forged frame may leave
// the uplink. Host B captures there, searches for the mark of forged frames,
// and decodes all other frames with gopacket to check that their sender may send them.
// At the end the suite prints a table: each case, what was done, and what
// happened.
//
// In [TestAttacksFromTheWire] host B is the attacker: it sends fragments, extension headers, neighbour
// discovery and ICMP errors to a stack of ours, whose services host B's kernel uses meanwhile.
// Each frame must be counted under its reason.
//
// The other tests compare numbers: [TestTenMillionFrames], whose counters have to
// add up, [TestResourcesAreReleased], after which all resources are released,
// [TestRestartsUnderTraffic] and [TestManyEndpoints].
//
// Without -attack.long all of them run in a short form. They need root and AF_XDP
// and are skipped without them, unless UNET_REQUIRE_XDP=1.
package attack
