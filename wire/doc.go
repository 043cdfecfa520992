// Package wire reads and writes headers: Ethernet, ARP, IPv4, ICMPv4, UDP, TCP and
// the U-Net message header, and the Internet checksum.
//
// # Reading
//
// A header is a view, a named byte slice over memory of the caller's:
//
//	type UDP []byte
//
// ParseUDP checks once everything that could make an accessor misbehave and
// returns the view, cut to the length that the header itself states, so that
// link-layer padding is gone. Afterwards SrcPort, Payload and the others are
// single loads that cannot fail and cannot panic. Nothing is copied and nothing
// is allocated: a view lives exactly as long as the frame under it.
//
//	frame                                     Ethernet  ParseEthernet
//	└ dst src type │ payload                  IPv4      ParseIPv4(eth.Payload())
//	                 └ header │ payload       UDP       ParseUDP(ip.Payload())
//	                            └ ports … │ datagram
//
// An accessor called on bytes that did not pass through Parse may panic.
//
// Parsers return bare sentinels ([ErrTruncated], [ErrChecksum], ...): the
// caller compares them and adds one to a counter.
//
// # Writing
//
// PutX fills in a header at the start of a slice that must be long enough; the
// fields come as arguments or in an XFields value. The payload is not
// changed, except by the functions that say that they copy
// ([PutUDPCopy], [PutEcho], [PutUnreachable]), which also compute the checksum
// as the bytes go by.
//
// # Byte order
//
// Everything on the wire is big-endian, everything in Go values is a plain
// integer. Addresses are [LinkAddr] and [4]byte in the order of the wire. The
// unfolded checksums in between, see [Sum], are opaque.
package wire
