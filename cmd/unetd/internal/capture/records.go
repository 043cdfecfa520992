//go:build linux

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
)

// Direction of a packet, as pcapng numbers it in epb_flags.
type Direction uint8

const (
	In  Direction = 1 // received by an endpoint, or from the wire
	Out Direction = 2 // sent by an endpoint
)

// Packet is a captured frame.
type Packet struct {
	Time      time.Time
	Device    string // an endpoint's port, the uplink, a queue of it (eth0/2), or lo
	Direction Direction
	Data      []byte // of the frame, from the Ethernet header on, as much as was captured
	Length    int    // bytes of the frame
	Comment   string // why it was dropped; and what is not seen in it

	at      uint64 // Time by CLOCK_MONOTONIC, in ns
	cpu     int
	place   bpf.CaptureUnetPlace
	ifindex uint32
	counter uint16 // of a dropped frame; noCounter: it was not dropped
}

// recordLen is the length of struct unet_record before the frame.
const recordLen = 64

// errRecord: a record is not one of our programs'.
var errRecord = errors.New("a record of the perf buffer is malformed")

// decoder makes packets of records.
type decoder struct {
	t       *target
	snaplen int
	link    [6]byte
	names   map[uint32]string // of the outer ends of ports, by their ifindex
	inner   map[uint32]uint32 // outer ends by inner ends
	renewed time.Time

	compared time.Time // the clocks
	offset   int64     // of the time of day to CLOCK_MONOTONIC, in ns
}

func newDecoder(t *target, snaplen int) *decoder {
	return &decoder{t: t, snaplen: snaplen, link: t.state.Link, names: map[uint32]string{}, inner: map[uint32]uint32{}}
}

// renewal is the age at which the table of ports is read again: a port's number is given to another
// endpoint when it has ended.
const renewal = time.Second

// decode makes a packet of a record.
func (d *decoder) decode(raw []byte, cpu int) (p Packet, err error) {
	if len(raw) < recordLen {
		return p, errRecord
	}
	r := parse(raw)
	if int(r.Caplen) > len(raw)-recordLen || int(r.LinkLen) > len(r.Link) {
		return p, errRecord
	}
	p = Packet{
		Time: d.wallClock(r.Time), Direction: In, Length: int(r.Len) + int(r.LinkLen),
		at: r.Time, cpu: cpu, place: bpf.CaptureUnetPlace(r.Place), ifindex: r.Device, counter: r.Counter,
	}
	if int(r.Counter) < bpf.NumCounters {
		c := bpf.Counter(r.Counter)
		p.Comment = bpf.CounterName(c) + ": " + bpf.CounterHelp(c)
	}
	p.Data = make([]byte, 0, int(r.LinkLen)+int(r.Caplen)+vlanLen)
	p.Data = append(p.Data, r.Link[:r.LinkLen]...)
	p.Data = append(p.Data, raw[recordLen:][:r.Caplen]...)
	switch p.place {
	case bpf.CaptureUnetPlaceUNET_PLACE_PORT:
		p.Direction = Out
		p.Device = d.port(r.Device)
	case bpf.CaptureUnetPlaceUNET_PLACE_SOCKET:
		p.Device = d.portOf(r.Device)
		d.restoreSuper(&p)
	case bpf.CaptureUnetPlaceUNET_PLACE_QUEUE:
		p.Device = fmt.Sprintf("%s/%d", d.t.name, r.Queue)
		d.restoreSuper(&p)
	case bpf.CaptureUnetPlaceUNET_PLACE_LO:
		p.Device = "lo"
	default:
		p.Device = d.t.name
	}
	if r.VlanType != 0 {
		insertVLAN(&p, r.VlanType, r.VlanTag)
	}
	if len(p.Data) > d.snaplen {
		p.Data = p.Data[:d.snaplen]
	}
	return p, nil
}

// parse reads the head of a record.
func parse(raw []byte) (r bpf.CaptureUnetRecord) {
	n := binary.NativeEndian
	r.Time, r.Len, r.Caplen = n.Uint64(raw), n.Uint32(raw[8:]), n.Uint32(raw[12:])
	r.Device, r.Queue, r.Counter = n.Uint32(raw[16:]), n.Uint32(raw[20:]), n.Uint16(raw[24:])
	r.VlanType, r.VlanTag, r.Place, r.LinkLen = n.Uint16(raw[26:]), n.Uint16(raw[28:]), raw[30], raw[31]
	copy(r.Link[:], raw[32:])
	return r
}

// wallClock is the time of day of a time of CLOCK_MONOTONIC. The clock may be set meanwhile.
func (d *decoder) wallClock(ns uint64) time.Time {
	if now := time.Now(); now.Sub(d.compared) >= renewal {
		d.compared, d.offset = now, now.UnixNano()-int64(monotonic())
	}
	return time.Unix(0, d.offset+int64(ns))
}

// monotonic is the time of CLOCK_MONOTONIC, in ns.
func monotonic() uint64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return uint64(t.Nano())
}

// restoreSuper puts back the MAC address over which a program has written the size of the datagrams of a UDP
// super-frame (ADR 33).
func (d *decoder) restoreSuper(p *Packet) {
	if len(p.Data) < 6 || binary.BigEndian.Uint32(p.Data) != superFrame {
		return
	}
	size := binary.NativeEndian.Uint16(p.Data[4:])
	copy(p.Data, d.link[:])
	text := fmt.Sprintf("UDP super-frame: datagrams of %d bytes", size)
	if p.Comment != "" {
		text = p.Comment + "; " + text
	}
	p.Comment = text
}

// superFrame is UNET_SUPER_FRAME of bpf/src/unet.h.
const superFrame = 0x01000000

// vlanLen is the length of a VLAN tag, in bytes.
const vlanLen = 4

// insertVLAN puts a VLAN tag into a frame that the kernel has moved out of it. typ is in network byte order.
func insertVLAN(p *Packet, typ, tag uint16) {
	if len(p.Data) < 12 {
		return
	}
	p.Data = append(p.Data, make([]byte, vlanLen)...)
	copy(p.Data[12+vlanLen:], p.Data[12:])
	binary.NativeEndian.PutUint16(p.Data[12:], typ)
	binary.BigEndian.PutUint16(p.Data[14:], tag)
	p.Length += vlanLen
}

// port is the name of the outer end of a port.
func (d *decoder) port(ifindex uint32) string {
	d.renew(false)
	name, known := d.names[ifindex]
	if !known {
		name = fmt.Sprintf("if%d", ifindex)
		if i, err := net.InterfaceByIndex(int(ifindex)); err == nil {
			name = i.Name
			d.names[ifindex] = name
		}
	}
	return name
}

// portOf is the name of the outer end of the port whose inner end has an ifindex.
func (d *decoder) portOf(inner uint32) string {
	if !d.t.all {
		return d.port(d.t.owner.Port)
	}
	d.renew(false)
	outer, known := d.inner[inner]
	if !known {
		d.renew(true)
		if outer, known = d.inner[inner]; !known {
			return fmt.Sprintf("port%d", inner-bpf.FirstIfindex)
		}
	}
	return d.port(outer)
}

func (d *decoder) renew(now bool) {
	if !now && time.Since(d.renewed) < renewal {
		return
	}
	d.renewed = time.Now()
	if d.t.all {
		d.inner = d.t.ports()
		clear(d.names)
	}
}
