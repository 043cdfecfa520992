//go:build linux

package attack

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/wire"
)

// capture receives on host B's end of the cable, without a mux, and so gets all frames
// that leave host A's uplink. It also answers messages: those for tag peerTag go back
// to their sender. With unetd on host B an endpoint there has that tag, and the capture ignores these messages.
type capture struct {
	unetd bool // unetd runs on host B

	conn *os.File
	raw  rawConn
	done chan struct{}

	mu        sync.Mutex
	permitted map[uint32]int // frames with a legal mark, by the number of their batch
	resets    int            // RSTs from resetBlock
	escaped   []string       // frames that the mux should have dropped
	err       error
}

type rawConn interface {
	Read(func(fd uintptr) bool) error
	Control(func(fd uintptr)) error
}

const (
	captureBuffer = 256 << 20 // bytes; a burst waits there, no frame may be missed
	maxEscaped    = 20        // that are kept
)

func startCapture(t testing.TB, h *netlab.Host, unetd bool) *capture {
	t.Helper()
	c := &capture{unetd: unetd, done: make(chan struct{}), permitted: make(map[uint32]int)}
	if err := h.Do(func() (err error) { c.conn, err = packetSocket(h.Interface); return err }); err != nil {
		t.Fatal(err)
	}
	raw, err := c.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c.raw = raw
	go c.run()
	t.Cleanup(func() { c.conn.Close(); <-c.done })
	return c
}

// packetSocket receives all frames that come in on a device, and can send there.
func packetSocket(device string) (*os.File, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket AF_PACKET", err)
	}
	f := os.NewFile(uintptr(fd), "capture")
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: i.Index}))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return f, nil
}

// networkOrder returns a protocol number in the byte order of the packet socket.
func networkOrder(n uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return binary.NativeEndian.Uint16(b[:])
}

func (c *capture) run() {
	defer close(c.done)
	frame, oob := make([]byte, 128<<10), make([]byte, 128)
	check := &senderCheck{}
	for {
		var n, oobn int
		var recvErr error
		err := c.raw.Read(func(fd uintptr) bool {
			n, oobn, _, _, recvErr = unix.Recvmsg(int(fd), frame, oob, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
			return recvErr != unix.EAGAIN
		})
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err = errors.Join(err, recvErr); err != nil || n > len(frame) {
			c.mu.Lock()
			c.err = fmt.Errorf("capture of %d bytes: %w", n, err)
			c.mu.Unlock()
			return
		}
		c.record(check, frame[:n], vlanTagged(oob[:oobn]))
	}
}

// vlanTagged reports whether a frame had a VLAN tag. The kernel removes the tag from the frame and
// passes it in a control message.
func vlanTagged(oob []byte) bool {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 4 {
			return binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0
		}
	}
	return false
}

func (c *capture) record(check *senderCheck, frame []byte, vlan bool) {
	reply := repliedMessage(frame)
	if c.unetd && reply != nil {
		return
	}
	verdict, batch, marked := readMark(frame)
	why := ""
	switch {
	case vlan:
		why = "of a VLAN"
	case marked && verdict != legal:
		why = "marked as forged"
	default:
		why = check.check(frame, marked)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case why != "" && len(c.escaped) < maxEscaped:
		c.escaped = append(c.escaped, fmt.Sprintf("batch %d, %s: %s", batch, why, hex.EncodeToString(frame[:min(len(frame), 128)])))
	case marked:
		c.permitted[batch]++
	case check.reset:
		c.resets++
	}
	if why == "" && reply != nil {
		c.raw.Control(func(fd uintptr) { unix.Write(int(fd), reply) }) // the sender notices a missing answer
	}
}

// legalFrames is how many of a batch's legal frames have come.
func (c *capture) legalFrames(batch uint32) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.permitted[batch]
}

// resetsSoFar is how many RSTs from resetBlock have come.
func (c *capture) resetsSoFar() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resets
}

// newEscaped returns the frames that the mux should have dropped, since the last call.
func (c *capture) newEscaped() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	escaped := c.escaped
	c.escaped = nil
	if c.err != nil {
		escaped = append(escaped, c.err.Error())
	}
	return escaped
}

// missed is how many frames found no room in the buffer, since the last call.
func (c *capture) missed() (n uint32, err error) {
	ctlErr := c.raw.Control(func(fd uintptr) {
		var st *unix.TpacketStats
		if st, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			n = st.Drops
		}
	})
	return n, errors.Join(ctlErr, err)
}

// The addresses on host A. Its kernel has hostA and hostA6.
var (
	hostA      = netip.MustParseAddr("10.0.0.1")
	hostB      = netip.MustParseAddr("10.0.0.2")
	hostA6     = netip.MustParseAddr("fd00::1")
	linkLocalA = netip.MustParseAddr("fe80::1") // if it has one
	hostB6     = netip.MustParseAddr("fd00::2")
	linkA      = wire.LinkAddr{0x02, 0, 0, 0, 0, 0x0a}
	linkB      = wire.LinkAddr{0x02, 0, 0, 0, 0, 0x0b}

	attackerAddr   = netip.MustParseAddr("10.0.0.60")
	attackerAddr6  = netip.MustParseAddr("fd00::60")
	neighbourAddr  = netip.MustParseAddr("10.0.0.70")
	neighbourAddr6 = netip.MustParseAddr("fd00::70")
	victimAddr     = netip.MustParseAddr("10.0.0.80")
	victimAddr6    = netip.MustParseAddr("fd00::80")
)

// isBystander reports whether a is the owned address of a bystander: of the neighbour or the victim.
func isBystander(a netip.Addr) bool {
	return a == neighbourAddr || a == neighbourAddr6 || a == victimAddr || a == victimAddr6
}

// Ports and message tags. The first three are the attackers'.
const (
	attackerPort   = 7000 // UDP and TCP, of hostA and hostA6; to 7099 if there are more of them
	attackerBlock  = 20032
	attackerTag    = 0xa0000000 // to 0xa0000fff
	neighbourPort  = 8000
	neighbourBlock = 20096
	resetBlock     = 20160 // TCP, of hostA; the mux sends RSTs from there for attackers
	neighbourTag   = 0xb0000001
	kernelPort     = 9000 // of the echo services of both kernels
	nobodysPort    = 9999
	peerTag        = 0xc0000001 // to which host B answers
	victimPort     = 9100       // of its echo services
	drainPort      = 9101       // where it counts datagrams
)

// senderCheck decides whether the sender of a frame that has left host A may send it.
// Marked frames are an attacker's. gopacket decodes, one layer after another as
// this file asks for them: a packet in a packet is payload.
type senderCheck struct {
	eth           layers.Ethernet
	arp           layers.ARP
	ip4           layers.IPv4
	ip6           layers.IPv6
	udp           layers.UDP
	tcp           layers.TCP
	icmp6         layers.ICMPv6
	solicitation  layers.ICMPv6NeighborSolicitation
	advertisement layers.ICMPv6NeighborAdvertisement

	reset bool // the last frame was a RST from resetBlock
}

var ignored = gopacket.NilDecodeFeedback

// check returns what is wrong with a frame, or "".
func (j *senderCheck) check(frame []byte, marked bool) string {
	j.reset = false
	if err := j.eth.DecodeFromBytes(frame, ignored); err != nil {
		return fmt.Sprintf("no Ethernet frame: %v", err)
	}
	if !bytes.Equal(j.eth.SrcMAC, linkA[:]) {
		return "from another MAC address"
	}
	rest := frame[atNetwork:]
	switch etherType := binary.BigEndian.Uint16(frame[atEtherType:]); etherType {
	case typeMessage:
		return checkMessage(rest, marked)
	case typeARP:
		return j.checkARP(rest, marked)
	case typeIPv4:
		return j.checkIPv4(rest, marked)
	case typeIPv6:
		return j.checkIPv6(rest, marked)
	default:
		return fmt.Sprintf("EtherType %#04x", etherType)
	}
}

func checkMessage(rest []byte, marked bool) string {
	m, err := wire.ParseMessage(rest)
	switch {
	case err != nil:
		return fmt.Sprintf("not a message: %v", err)
	case marked && (m.Src() < attackerTag || m.Src() > attackerTag+0xfff), !marked && m.Src() != neighbourTag:
		return fmt.Sprintf("a message from tag %#x", m.Src())
	}
	return ""
}

// checkARP: the holder of an address may announce it and ask for other addresses. unetd
// probes an address before it is claimed.
func (j *senderCheck) checkARP(rest []byte, marked bool) string {
	if err := j.arp.DecodeFromBytes(rest, ignored); err != nil {
		return fmt.Sprintf("not ARP: %v", err)
	}
	sender, _ := netip.AddrFromSlice(j.arp.SourceProtAddress)
	target, _ := netip.AddrFromSlice(j.arp.DstProtAddress)
	claimed := sender
	if sender == netip.IPv4Unspecified() && j.arp.Operation == arpRequest {
		claimed = target
	}
	switch {
	case !bytes.Equal(j.arp.SourceHwAddress, linkA[:]):
		return "ARP with another MAC address"
	case marked && claimed != attackerAddr, !marked && claimed != hostA && !isBystander(claimed) && claimed != attackerAddr:
		return fmt.Sprintf("ARP for %v", claimed)
	}
	return ""
}

func (j *senderCheck) checkIPv4(rest []byte, marked bool) string {
	if err := j.ip4.DecodeFromBytes(rest, ignored); err != nil {
		return fmt.Sprintf("not IPv4: %v", err)
	}
	src, _ := netip.AddrFromSlice(j.ip4.SrcIP)
	fragment := j.ip4.FragOffset != 0 || j.ip4.Flags&layers.IPv4MoreFragments != 0
	switch {
	case int(j.ip4.Length) > len(rest):
		return "IPv4 with a total length beyond the frame"
	case marked && src == attackerAddr, !marked && isBystander(src):
		return ""
	case src != hostA:
		return fmt.Sprintf("IPv4 from %v", src)
	case fragment:
		return "a fragment from a shared address"
	case len(j.ip4.Options) != 0:
		return "IPv4 options from a shared address"
	case j.ip4.Protocol == layers.IPProtocolICMPv4 && !marked:
		return "" // the kernel's
	}
	return j.checkPorts(byte(j.ip4.Protocol), j.ip4.Payload, marked)
}

func (j *senderCheck) checkIPv6(rest []byte, marked bool) string {
	if err := j.ip6.DecodeFromBytes(rest, ignored); err != nil {
		return fmt.Sprintf("not IPv6: %v", err)
	}
	src, _ := netip.AddrFromSlice(j.ip6.SrcIP)
	switch {
	case int(j.ip6.Length) > len(rest)-40:
		return "IPv6 with a payload length beyond the frame"
	case j.ip6.NextHeader == layers.IPProtocolICMPv6:
		return j.checkICMPv6(src, marked)
	case marked && src == attackerAddr6 && isExtension(byte(j.ip6.NextHeader)):
		return "an extension header"
	case marked && src == attackerAddr6, !marked && isBystander(src):
		return ""
	case !marked && j.ip6.NextHeader == layers.IPProtocolIPv6HopByHop:
		return "" // the kernel reports the groups that it listens to
	case src != hostA6:
		return fmt.Sprintf("IPv6 from %v", src)
	}
	return j.checkPorts(byte(j.ip6.NextHeader), j.ip6.Payload, marked)
}

// isExtension: IPv6 headers that lead to others (IANA's registry), which the mux
// does not follow.
func isExtension(next byte) bool {
	return slices.Contains([]byte{0, 43, 51, 60, 135, 139, 140, 253, 254}, next)
}

// checkPorts of the shared addresses.
func (j *senderCheck) checkPorts(protocol byte, payload []byte, marked bool) string {
	var port int
	var err error
	switch protocol {
	case protocolUDP:
		err = j.udp.DecodeFromBytes(payload, ignored)
		port = int(j.udp.SrcPort)
	case protocolTCP:
		err = j.tcp.DecodeFromBytes(payload, ignored)
		port = int(j.tcp.SrcPort)
	default:
		return fmt.Sprintf("protocol %d from a shared address", protocol)
	}
	ours := port == kernelPort || port == neighbourPort || port >= neighbourBlock && port < neighbourBlock+64
	if protocol == protocolTCP && j.tcp.RST && port >= resetBlock && port < resetBlock+64 {
		ours, j.reset = true, true
	}
	if marked {
		ours = port >= attackerPort && port < attackerPort+100 || port >= attackerBlock && port < attackerBlock+64
	}
	switch {
	case err != nil:
		return fmt.Sprintf("protocol %d: %v", protocol, err)
	case !ours:
		return fmt.Sprintf("from port %d", port)
	}
	return ""
}

func (j *senderCheck) checkICMPv6(src netip.Addr, marked bool) string {
	if err := j.icmp6.DecodeFromBytes(j.ip6.Payload, ignored); err != nil {
		return fmt.Sprintf("not ICMPv6: %v", err)
	}
	kind := j.icmp6.TypeCode.Type()
	target := src
	var options layers.ICMPv6Options
	var err error
	switch kind {
	case routerSolicitation, routerAdvertisement, redirect:
		return "a router's message, or to one"
	case neighbourSolicit:
		err = j.solicitation.DecodeFromBytes(j.icmp6.Payload, ignored)
		options = j.solicitation.Options
		if src.IsUnspecified() {
			target, _ = netip.AddrFromSlice(j.solicitation.TargetAddress)
		}
	case neighbourAdvert:
		err = j.advertisement.DecodeFromBytes(j.icmp6.Payload, ignored)
		options = j.advertisement.Options
		target, _ = netip.AddrFromSlice(j.advertisement.TargetAddress)
	}
	if err != nil {
		return fmt.Sprintf("not neighbour discovery: %v", err)
	}
	for _, o := range options {
		if (o.Type == layers.ICMPv6OptSourceAddress || o.Type == layers.ICMPv6OptTargetAddress) && !bytes.Equal(o.Data, linkA[:]) {
			return "neighbour discovery with another MAC address"
		}
	}
	// unetd probes an address before it is claimed, and then announces it.
	asked := (target == attackerAddr6 || hoardedAddrs.Contains(target)) && (src.IsUnspecified() || kind == neighbourAdvert && src == target)
	if marked && target != attackerAddr6 || !marked && target != hostA6 && target != linkLocalA && !isBystander(target) && !asked {
		return fmt.Sprintf("ICMPv6 type %d from %v for %v", kind, src, target)
	}
	return ""
}

// repliedMessage is host B's answer to a message for it, or nil.
func repliedMessage(frame []byte) []byte {
	if len(frame) < atNetwork || binary.BigEndian.Uint16(frame[atEtherType:]) != typeMessage {
		return nil
	}
	m, err := wire.ParseMessage(frame[atNetwork:])
	if err != nil || m.Dst() != peerTag {
		return nil
	}
	return ether(linkA, linkB, typeMessage, message(m.Src(), m.Dst(), m.Payload()))
}
