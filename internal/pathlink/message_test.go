//go:build linux

package pathlink

import (
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// message is the frame of a message without payload.
func message(dst, src wire.LinkAddr, to, from uint32) []byte {
	b := make([]byte, wire.EthernetHeaderLen+wire.MessageHeaderLen)
	wire.PutEthernet(b, dst, src, wire.EtherTypeUNet)
	wire.PutMessage(b[wire.EthernetHeaderLen:], to, from, 0)
	return b
}

// Of the messages that a hostile end writes only those arrive that are named as its own, by tag and MAC address, and are for the reader.
func TestMessagesWithTagsOfOthersAreDropped(t *testing.T) {
	l := newLab(t, stack.Config{})
	for tag := range uint32(3) {
		testutil.Must(t, l.table.Set(endpoint.MessageTag(tag+1), uint64(tag+1)))
	}
	ring := hostile(t, l, 0)
	other := wire.LinkAddr{2, 0, 0, 0, 0, 9}
	otherVersion := message(uplink, uplink, 2, 1)
	otherVersion[wire.EthernetHeaderLen]++
	asIPv6 := make([]byte, wire.EthernetHeaderLen+wire.IPv6HeaderLen+portsLen)
	wire.PutEthernet(asIPv6, uplink, uplink, wire.EtherTypeIPv6)
	ip := asIPv6[wire.EthernetHeaderLen:]
	ip[6] = wire.ProtocolUDP
	src, dst := tagtable.MessageAddr(1).Netip().As16(), tagtable.MessageAddr(2).Netip().As16()
	copy(ip[8:], src[:])
	copy(ip[24:], dst[:])
	denied := uint64(0)
	for name, b := range map[string][]byte{
		"from another endpoint":        message(uplink, uplink, 2, 3),
		"from the reader":              message(uplink, uplink, 2, 2),
		"from nobody":                  message(uplink, uplink, 2, 9),
		"from tag 0":                   message(uplink, uplink, 2, 0),
		"to another endpoint":          message(uplink, uplink, 3, 1),
		"to the writer":                message(uplink, uplink, 1, 1),
		"to nobody":                    message(uplink, uplink, 9, 1),
		"from another host":            message(uplink, other, 2, 1),
		"to another host":              message(other, uplink, 2, 1),
		"to all hosts":                 message(wire.Broadcast, uplink, 2, 1),
		"a truncated header":           message(uplink, uplink, 2, 1)[:25],
		"no header":                    message(uplink, uplink, 2, 1)[:14],
		"not even a type":              message(uplink, uplink, 2, 1)[:1],
		"another version":              otherVersion,
		"a tag in the place of a host": asIPv6,
	} {
		put(t, ring, b)
		denied++
		testutil.Eventually(t, name+": dropped", func() bool { return l.ends[1].count("path_denied") == denied })
	}
	put(t, ring, message(uplink, uplink, 2, 1))
	testutil.Eventually(t, "a true message", func() bool { return l.ends[1].count("path_frames_received") == 1 })
	// What it does not hold any more it does not send under.
	l.table.Clear(endpoint.MessageTag(1))
	put(t, ring, message(uplink, uplink, 2, 1))
	testutil.Eventually(t, "a message that comes too late is dropped", func() bool { return l.ends[1].count("path_denied") == denied+1 })
}
