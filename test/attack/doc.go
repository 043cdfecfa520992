// Package attack attacks the protection boundary: what docs/protection.md
// promises is tried here, against a real unetd, by processes that have no
// privilege and all that a grant gives.
//
//	go test ./test/attack -v -attack.long
//
// [TestAttacks] runs the cases one after another. An attacker is a process of
// user nobody that was granted an endpoint; it writes into its rings and its
// segment directly, makes system calls with its descriptors, and speaks to unetd's
// socket as it likes. Beside it, all the time, run the bystanders:
//
//   - a neighbour, which is a process of another user with endpoints of its own: it
//     exchanges datagrams and messages with host B, checks every byte, and now and
//     then asks unetd for a route, a tag and another endpoint;
//   - kernel traffic on the same interface: ping, a UDP and a TCP service.
//
// None of them may lose a byte or see a foreign one, and no forged frame may leave
// the uplink. Host B listens there, looks for the mark that every forged frame
// carries, and decodes all others with gopacket to see whether their sender may say
// so. At the end the suite prints a table: each case, what was done, and what
// happened.
//
// The other tests are about numbers: [TestTenMillionFrames], whose counters have to
// add up, [TestCycles], after which everything is back where it started,
// [TestRestartsUnderTraffic] and [TestManyEndpoints].
//
// Without -attack.long all of them run in a short form. They need root and AF_XDP
// and are skipped without, unless UNET_REQUIRE_XDP=1.
package attack
