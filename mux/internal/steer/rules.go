//go:build linux

package steer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/ethtool"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/wire"
)

// Kinds of classification rules, and flags of the kind (linux/ethtool.h).
const (
	flowTCP4  = 0x01 // struct ethtool_tcpip4_spec
	flowUDP4  = 0x02
	flowTCP6  = 0x05 // struct ethtool_tcpip6_spec
	flowUDP6  = 0x06
	flowIP4   = 0x0d // struct ethtool_usrip4_spec
	flowIP6   = 0x0e // struct ethtool_usrip6_spec
	flowEther = 0x12 // struct ethhdr

	flowExt = 0x80000000 | 0x40000000 // FLOW_EXT, FLOW_MAC_EXT: further fields
)

// Fields of these structs, in bytes from their beginning.
const (
	atDst4, atPort4   = 4, 10
	atDst6, atPort6   = 16, 34
	atVersion4, isIP4 = 13, 1 // ip_ver, ETH_RX_NFC_IP4
	atEtherType       = 12
)

// Rule is a classification rule: frames of a kind that are equal to key where mask is set come
// in on ring. It can be compared: bits of key outside of mask are 0.
type Rule struct {
	kind      uint32
	key, mask [52]byte // union ethtool_flow_union
	ring      uint64
}

// where returns r with the additional condition that the field at has a value in the bits of
// mask; nil: in all bits.
func (r Rule) where(at int, value, mask []byte) Rule {
	for i, v := range value {
		m := byte(0xff)
		if mask != nil {
			m = mask[i]
		}
		r.key[at+i], r.mask[at+i] = v&m, m
	}
	return r
}

// flows is r without its ring: two rules with the same flows are about the same frames.
func (r Rule) flows() Rule {
	r.ring = 0
	return r
}

// covers reports whether all frames that match o match r. Rules of IP addresses alone cover those
// of TCP and UDP: source and destination are at the same place.
func (r Rule) covers(o Rule) bool {
	only := len(r.mask) // r.mask has no bit from here on
	switch {
	case r.kind == o.kind:
	case r.kind == flowIP4 && (o.kind == flowTCP4 || o.kind == flowUDP4):
		only = atDst4 + 4
	case r.kind == flowIP6 && (o.kind == flowTCP6 || o.kind == flowUDP6):
		only = atDst6 + 16
	default:
		return false
	}
	for i, m := range r.mask {
		if m&^o.mask[i] != 0 || (r.key[i]^o.key[i])&m != 0 || m != 0 && i >= only {
			return false
		}
	}
	return true
}

// RulesOf are the rules that lead the frames of a tag to a queue: alternatives, one for a driver
// that has masks of ports, another for one that has not.
func RulesOf(t endpoint.Tag, queue uint32) (alternatives [][]Rule) {
	rule := func(kind uint32) Rule { return Rule{kind: kind, ring: uint64(queue)} }
	ether := func(is wire.EtherType) Rule {
		return rule(flowEther).where(atEtherType, binary.BigEndian.AppendUint16(nil, uint16(is)), nil)
	}
	switch {
	case t.Kind == endpoint.TagMessage:
		return [][]Rule{{ether(wire.EtherTypeUNet)}}
	case t.Kind == endpoint.TagAddr && t.Addr.Is4():
		return [][]Rule{{rule(flowIP4).where(atDst4, t.Addr.AsSlice(), nil), ether(wire.EtherTypeARP)}}
	case t.Kind == endpoint.TagAddr:
		group := route.SolicitedNode(t.Addr)
		return [][]Rule{{rule(flowIP6).where(atDst6, t.Addr.AsSlice(), nil), rule(flowIP6).where(atDst6, group[:], nil)}}
	}
	r, at := ofAddr(t, rule), atPort4
	if t.Addr.Is6() {
		at = atPort6
	}
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	if !t.Block {
		return [][]Rule{{r.where(at, port(t.Port), nil)}}
	}
	single := make([]Rule, endpoint.BlockPorts)
	for i := range single {
		single[i] = r.where(at, port(t.Port+uint16(i)), nil)
	}
	mask := uint16(^uint16(endpoint.BlockPorts - 1))
	return [][]Rule{{r.where(at, port(t.Port), port(mask))}, single}
}

// ofAddr is a rule for all ports of the protocol and address of a tag.
func ofAddr(t endpoint.Tag, rule func(kind uint32) Rule) Rule {
	tcp := t.Kind == endpoint.TagTCP
	switch {
	case t.Addr.Is4() && tcp:
		return rule(flowTCP4).where(atDst4, t.Addr.AsSlice(), nil)
	case t.Addr.Is4():
		return rule(flowUDP4).where(atDst4, t.Addr.AsSlice(), nil)
	case tcp:
		return rule(flowTCP6).where(atDst6, t.Addr.AsSlice(), nil)
	}
	return rule(flowUDP6).where(atDst6, t.Addr.AsSlice(), nil)
}

// Driver is the classification rules of a driver. Each rule has a location, and a frame that
// matches several rules goes by the lowest one. An error that wraps EOPNOTSUPP: it has none.
type Driver interface {
	// Locations lists the locations in use, and the number of locations. chooses: the driver
	// chooses the location of a new rule.
	Locations() (used []uint32, size uint32, chooses bool, err error)
	// Get reads the rule at a location. found is false if there is none.
	Get(at uint32) (r Rule, found bool, err error)
	// Insert inserts a rule at a location (anyLocation: the driver chooses it), and returns the location.
	Insert(r Rule, at uint32) (uint32, error)
	// Remove removes the rule at a location.
	Remove(at uint32) error
}

// anyLocation is RX_CLS_LOC_ANY.
const anyLocation = 0xffffffff

// DriverRules are the rules of an interface in the kernel, by the ioctl SIOCETHTOOL.
type DriverRules struct {
	socket  *ethtool.Socket // of the interface's namespace
	name    func() (string, error)
	command func(iface string, command []byte) error
}

// OpenDriverRules is for an interface of the calling thread's namespace. name returns the
// interface's present name.
func OpenDriverRules(name func() (string, error)) (*DriverRules, error) {
	s, err := ethtool.Open()
	if err != nil {
		return nil, err
	}
	return &DriverRules{s, name, s.Command}, nil
}

// Close closes the socket.
func (d *DriverRules) Close() error { return d.socket.Close() }

// rxnfc is struct ethtool_rxnfc of linux/ethtool.h, with room for a number of locations.
type rxnfc []byte

// Its fields, in bytes.
const (
	rxnfcData     = 8
	rxnfcFlow     = 16 // struct ethtool_rx_flow_spec: flow_type, h_u, h_ext, m_u, m_ext, ring_cookie, location
	rxnfcKey      = 20
	rxnfcMask     = 92
	rxnfcMaskExt  = 144
	rxnfcRing     = 168
	rxnfcLocation = 176
	rxnfcCount    = 184
	rxnfcUsed     = 188 // rule_locs
	rxnfcSize     = 192
)

// locationSpecial is RX_CLS_LOC_SPECIAL: in data, the driver chooses locations.
const locationSpecial = 0x80000000

func newRxnfc(command uint32, locations int) rxnfc {
	b := make(rxnfc, max(rxnfcSize, rxnfcUsed+4*locations))
	b.put32(0, command)
	b.put32(rxnfcCount, uint32(locations))
	return b
}

func (b rxnfc) get32(at int) uint32    { return binary.NativeEndian.Uint32(b[at:]) }
func (b rxnfc) put32(at int, v uint32) { binary.NativeEndian.PutUint32(b[at:], v) }

// putRule sets the rule of a command that inserts one.
func (b rxnfc) putRule(r Rule, at uint32) {
	b.put32(rxnfcFlow, r.kind)
	copy(b[rxnfcKey:], r.key[:])
	copy(b[rxnfcMask:], r.mask[:])
	if r.kind == flowIP4 {
		b[rxnfcKey+atVersion4] = isIP4 // drivers want it, with the mask 0
	}
	binary.NativeEndian.PutUint64(b[rxnfcRing:], r.ring)
	b.put32(rxnfcLocation, at)
}

// rule is the inverse of putRule. The kind keeps the flags of fields that a Rule does not
// have, so such a rule is equal to none of unet's. Some drivers report FLOW_EXT with no such field.
func (b rxnfc) rule() Rule {
	r := Rule{kind: b.get32(rxnfcFlow), ring: binary.NativeEndian.Uint64(b[rxnfcRing:])}
	copy(r.key[:], b[rxnfcKey:])
	copy(r.mask[:], b[rxnfcMask:])
	for i, m := range r.mask {
		r.key[i] &= m
	}
	if !slices.ContainsFunc(b[rxnfcMaskExt:rxnfcMaskExt+20], func(m byte) bool { return m != 0 }) {
		r.kind &^= flowExt
	}
	return r
}

func (d *DriverRules) do(b rxnfc) error {
	name, err := d.name()
	if err != nil {
		return err
	}
	return d.command(name, b)
}

// Locations implements Driver.
func (d *DriverRules) Locations() (used []uint32, size uint32, chooses bool, err error) {
	for more := 0; ; more += 16 { // rules that are inserted between the two commands
		b := newRxnfc(unix.ETHTOOL_GRXCLSRLCNT, 0)
		err := d.do(b)
		if errors.Is(err, unix.EINVAL) { // what mlx4 returns without steering by rules, and when it is down
			err = fmt.Errorf("%w (%w)", unix.EOPNOTSUPP, err)
		}
		if err != nil {
			return nil, 0, false, err
		}
		chooses = b.get32(rxnfcData)&locationSpecial != 0
		list := newRxnfc(unix.ETHTOOL_GRXCLSRLALL, int(b.get32(rxnfcCount))+more)
		err = d.do(list)
		if errors.Is(err, unix.EMSGSIZE) && more < 256 {
			continue
		}
		if err != nil {
			return nil, 0, false, err
		}
		n := min(int(list.get32(rxnfcCount)), (len(list)-rxnfcUsed)/4)
		for i := range n {
			used = append(used, list.get32(rxnfcUsed+4*i))
		}
		return used, list.get32(rxnfcData) &^ locationSpecial, chooses, nil
	}
}

// Get implements Driver.
func (d *DriverRules) Get(at uint32) (Rule, bool, error) {
	b := newRxnfc(unix.ETHTOOL_GRXCLSRULE, 0)
	b.put32(rxnfcLocation, at)
	err := d.do(b)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // what drivers return for a free location
		return Rule{}, false, nil
	}
	return b.rule(), err == nil, err
}

// Insert implements Driver.
func (d *DriverRules) Insert(r Rule, at uint32) (uint32, error) {
	b := newRxnfc(unix.ETHTOOL_SRXCLSRLINS, 0)
	b.putRule(r, at)
	err := d.do(b)
	return b.get32(rxnfcLocation), err
}

// Remove implements Driver.
func (d *DriverRules) Remove(at uint32) error {
	b := newRxnfc(unix.ETHTOOL_SRXCLSRLDEL, 0)
	b.put32(rxnfcLocation, at)
	return d.do(b)
}
