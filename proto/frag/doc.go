// Package frag reassembles fragmented IP packets (RFC 791, RFC 8200 section 4.5) and divides
// payloads into fragments. It does no I/O, keeps no clock and starts no goroutine; its caller
// holds a lock around every call.
//
//	wire.IPv4, wire.IPv6 ── Reassembler.IPv4, IPv6 ──┬─ Complete: one whole packet, to be parsed again
//	                                                 ├─ Kept, Duplicate: more is to come
//	                                                 └─ any other verdict: dropped
//	payload ── Pieces ── wire.PutIPv4, wire.PutIPv6Fragment ── fragments; the identification is of IDs
//
// Fragments of a datagram have the same addresses and identification and, in IPv4, the same
// protocol. Their data is copied into pages of [PageSize] bytes, so what is held is bounded by
// what has come in and not by what a fragment claims. No memory is taken before the first
// fragment. Pages and records are reused, and kept for that.
//
// # What is refused
//
// A fragment that overlaps others ends its datagram, in IPv6 (RFC 5722) and in IPv4 (as in Linux
// since 4.19): what comes of it until its time is over is dropped, too. A fragment whose
// bytes have all been received before, with the same values, is a duplicate and ignored
// (RFC 8200, section 4.5); Linux ignores it with other values, too. Two ends, too many
// fragments and contradictory ECN also end a datagram. Other irregular fragments are dropped
// alone. See [Verdict].
//
// # Limits
//
// [Config] bounds the bytes held, the datagrams, those of one source, and the fragments of a
// datagram. A source is an IPv4 address or the first 64 bits of an IPv6 address, since one host
// has all addresses of such a prefix. If there is no room, the oldest datagram of the source that
// holds most is dropped. A datagram is dropped [TimeoutIPv4] or [TimeoutIPv6] after its first
// fragment came in, whichever that was: at the next fragment, or when the caller, whose timer follows
// [Reassembler.NextDeadline], calls [Reassembler.Expire]. [Config.Report] then tells the sender.
package frag
