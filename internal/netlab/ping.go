package netlab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/unet-go/unet/wire"
)

// pingTimeout is how long Ping waits for a reply.
const pingTimeout = 5 * time.Second

// Ping sends an ICMP echo request from the host's kernel and returns when the reply to
// it has come (RFC 792; RFC 4443, section 4), or an error after five seconds. It needs
// CAP_NET_RAW.
func (h *Host) Ping(to netip.Addr) error {
	network, request, reply := "ip4:icmp", uint8(wire.ICMPEchoRequest), uint8(wire.ICMPEchoReply)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	var c net.PacketConn
	if err := h.Do(func() (err error) { c, err = net.ListenPacket(network, ""); return err }); err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(pingTimeout)); err != nil {
		return err
	}
	payload := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano())) // so that no other's reply is taken for ours
	b := make([]byte, wire.ICMPv4HeaderLen+len(payload))
	wire.PutEcho(b, wire.EchoFields{Type: request, ID: 0x756e, Seq: 1}, payload) // over IPv6 the kernel writes the checksum
	if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return fmt.Errorf("ping %v: %w", to, err)
	}
	for buf := make([]byte, 256); ; {
		n, _, err := c.ReadFrom(buf) // a raw socket hears all of the host's ICMP
		if err != nil {
			return fmt.Errorf("ping %v: %w", to, err)
		}
		if n == len(b) && buf[0] == reply && bytes.Equal(buf[4:n], b[4:]) {
			return nil
		}
	}
}
