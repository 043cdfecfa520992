// Package frametest builds the frames of tests with gopacket, an encoder that shares no code with package wire.
package frametest

import (
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// Build returns a frame of these layers, with lengths and checksums. A checksum over addresses is over those of the
// next IP header before it. Build panics if gopacket cannot encode a layer.
func Build(all ...gopacket.SerializableLayer) []byte {
	var ip gopacket.NetworkLayer
	for _, l := range all {
		if n, ok := l.(gopacket.NetworkLayer); ok {
			ip = n
		}
		if l, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok && ip != nil {
			if err := l.SetNetworkLayerForChecksum(ip); err != nil {
				panic(err)
			}
		}
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		panic(err)
	}
	return slices.Clone(b.Bytes())
}

// Datagram returns a frame with a UDP datagram over the IP version of from.
func Datagram(dst, src [6]byte, from, to netip.AddrPort, payload string) []byte {
	eth := &layers.Ethernet{DstMAC: dst[:], SrcMAC: src[:], EthernetType: layers.EthernetTypeIPv4}
	udp := &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(to.Port())}
	srcIP, dstIP := from.Addr().AsSlice(), to.Addr().AsSlice()
	if from.Addr().Is4() {
		return Build(eth, &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: srcIP, DstIP: dstIP}, udp, gopacket.Payload(payload))
	}
	eth.EthernetType = layers.EthernetTypeIPv6
	return Build(eth, &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: srcIP, DstIP: dstIP}, udp, gopacket.Payload(payload))
}
