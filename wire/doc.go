// Package wire reads and writes headers: Ethernet, ARP, IPv4, ICMPv4, IPv6, ICMPv6 with
// neighbour discovery, UDP, TCP, RoCEv2, the U-Net message header and the messages of the
// RDMA connection manager. It computes the Internet checksum and the invariant CRC of RoCEv2.
//
// # Reading
//
// [Ethernet], [IPv4], [IPv6], [UDP], [TCP] and [RoCE] are structs of the fields that a receiver
// looks at. The other headers are views, named byte slices over memory of the caller's:
//
//	type ARP []byte
//
// A parser checks the lengths once, and the checksum of IPv4, ICMP and UDP. Payloads and
// views are cut to the length that the header states, so that link-layer padding is gone.
// Afterwards the accessors of a view (SrcPort, Payload, ...) cannot panic. No payload is
// copied and nothing is allocated: payloads and views are valid as long as the frame.
//
//	frame                                     eth.Parse(frame)
//	└ dst src type │ payload                  ip.Parse(eth.Payload)
//	                 └ header │ payload       ParseUDP(ip.Payload, ip.Src, ip.Dst, partial)
//	                            └ ports … │ payload
//
// An accessor called on bytes that did not pass through a parser may panic.
//
// The errors of parsers ([ErrTruncated], [ErrChecksum], ...) are not wrapped: the caller compares
// them with == and adds one to a counter.
//
// # Writing
//
// PutX writes a header to the start of a slice that must be long enough; the
// fields come as arguments or in an XFields value. It leaves the payload as it is.
// [PutUDPCopy], [PutEcho] and [PutICMPv4Error] copy the payload too, and compute the
// checksum in the same pass.
//
// # Byte order
//
// Everything on the wire is big-endian, everything in Go values is a plain
// integer. Addresses are [LinkAddr], [4]byte and [16]byte in the order of the wire. Only the
// functions of this package understand unfolded checksums (see [Sum]).
package wire
