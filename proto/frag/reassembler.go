package frag

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/unet-go/unet/wire"
)

// Time is nanoseconds since any fixed moment.
type Time int64

const never Time = math.MaxInt64

// How long a datagram may take, from its first fragment that came in.
const (
	TimeoutIPv4 = 30 * time.Second // as in Linux (ipfrag_time); RFC 1122, section 3.3.2, has 60 to 120 s
	TimeoutIPv6 = 60 * time.Second // RFC 8200, section 4.5
)

// Defaults of [Config].
const (
	DefaultMemory    = 1 << 20
	DefaultDatagrams = 256
	DefaultPerSource = 64
	DefaultFragments = 128 // 65,535 bytes in packets of 576 are 119
)

// maxData is the most that an IP packet of either version has behind its header and is a
// payload in IPv6, in bytes. An IPv4 packet with its header is no longer.
const maxData = math.MaxUint16

// Config of a [Reassembler]. The zero value works: 0 is the default.
type Config struct {
	Memory    int // bytes of data held, in pages; at least the 64 KiB of one datagram
	Datagrams int // that are incomplete
	PerSource int // of those, of one source
	Fragments int // of one datagram
	// Report is called for a datagram that is not complete when its time is over, if its first
	// fragment has come in. link is as given with that; packet is the fragment, cut to what an
	// ICMP error may quote, and valid during the call, in which the reassembler must not be used. nil: nobody is told.
	Report func(link wire.LinkAddr, packet []byte)
}

// Reassembler is all incomplete datagrams of a host. Its methods are not safe for concurrent
// use.
type Reassembler struct {
	cfg       Config
	maxPages  int
	byKey     map[key]*datagram
	datagrams []*datagram // the same, the oldest first
	sources   []*source
	nextDue   Time // no datagram's time is over before
	pages     int  // made
	counts    [verdicts]uint64
	out       []byte // the last complete packet

	freePages     []*page
	freeDatagrams []*datagram
	freeSources   []*source
}

// key is what fragments of a datagram have in common.
type key struct {
	src, dst [16]byte // of IPv4: in the first four bytes
	id       uint32
	protocol uint8 // of IPv4; in IPv6 that of the first fragment alone counts
	v6       bool
}

// origin is what a source is known by.
type origin struct {
	prefix uint64
	v6     bool
}

func (k *key) origin() origin { return origin{binary.BigEndian.Uint64(k.src[:]), k.v6} }

// source is a source that has incomplete datagrams.
type source struct {
	origin
	datagrams int
	pages     int
}

// header is what the first fragment gives to the header of the whole packet.
type header struct {
	tos      uint8 // or traffic class
	ttl      uint8 // or hop limit
	protocol uint8
	flow     uint32
}

type datagram struct {
	key
	header
	link      wire.LinkAddr // where the first fragment came from
	head      []byte        // its headers, as far as an error may quote them; empty: it has not been received
	first     int           // its data, bytes
	source    *source
	due       Time
	ended     bool  // no fragment is accepted any more
	ecn       uint8 // a bit for each codepoint that a fragment had
	fragments int
	total     int // bytes of data; 0: the last fragment has not been received
	end       int // of the data that has been received, in bytes
	units     int // received
	pages     [(maxData + PageSize - 1) / PageSize]*page
}

// fragment is a received fragment.
type fragment struct {
	key
	header
	link   wire.LinkAddr
	packet []byte
	offset int
	more   bool
	data   []byte // of the packet
}

// New makes a reassembler.
func New(cfg Config) *Reassembler {
	cfg.Memory = max(cmp.Or(cfg.Memory, DefaultMemory), maxData+1)
	cfg.Datagrams = max(cmp.Or(cfg.Datagrams, DefaultDatagrams), 1)
	cfg.PerSource = max(cmp.Or(cfg.PerSource, DefaultPerSource), 1)
	cfg.Fragments = max(cmp.Or(cfg.Fragments, DefaultFragments), 2)
	return &Reassembler{cfg: cfg, maxPages: cfg.Memory / PageSize, nextDue: never}
}

// moreFragments is the flag MF in IPv4's fragment field.
const moreFragments = 0x2000

// IPv4 takes a fragment: a packet whose Fragment is not 0. link is where it came from, for
// [Config.Report]; zero if its sender must not be told anything. With [Complete] IPv4 returns the
// whole packet, with the header of the first fragment without options, which is valid until the
// next call. The fragment's memory is not kept.
func (r *Reassembler) IPv4(now Time, p *wire.IPv4, link wire.LinkAddr) ([]byte, Verdict) {
	f := fragment{
		key:    key{id: uint32(binary.BigEndian.Uint16(p.Packet[4:])), protocol: p.Protocol},
		header: header{tos: p.TOS, ttl: p.Packet[8], protocol: p.Protocol},
		link:   link,
		packet: p.Packet,
		offset: p.FragmentOffset(),
		more:   p.Fragment&moreFragments != 0,
		data:   p.Payload,
	}
	copy(f.src[:], p.Src[:])
	copy(f.dst[:], p.Dst[:])
	var d *datagram
	v := Atomic
	switch {
	case p.Fragment == 0:
	case wire.IPv4HeaderLen+f.offset+len(f.data) > math.MaxUint16:
		v = TooLong
	default:
		d, v = r.add(now, &f)
	}
	return r.finish(d, v, p.Packet)
}

// IPv6 is IPv4 for IPv6. The whole packet has the header of the first fragment without the
// headers up to the fragment header, which [wire.IPv6] has accepted. The sender of a packet
// with the verdict [HeaderChain] is to be told by a parameter problem with code 3 (RFC 7112).
// Neighbour discovery must not be fragmented (RFC 6980): the caller refuses it in whole packets
// from here.
func (r *Reassembler) IPv6(now Time, p *wire.IPv6, link wire.LinkAddr) ([]byte, Verdict) {
	f := fragment{
		key: key{src: p.Src, dst: p.Dst, id: p.FragmentID, v6: true},
		header: header{
			tos: p.TrafficClass, ttl: p.HopLimit, protocol: p.Protocol,
			flow: binary.BigEndian.Uint32(p.Packet) & 0xfffff,
		},
		link:   link,
		packet: p.Packet,
		offset: int(p.Fragment &^ 7),
		more:   p.Fragment&1 != 0,
		data:   p.Payload,
	}
	var d *datagram
	v := Atomic
	switch {
	case p.Fragment == 0:
	case f.offset+len(f.data) > maxData:
		v = TooLong
	case f.offset == 0 && !hasHeaders(p.Protocol, p.Payload):
		v = HeaderChain
	default:
		d, v = r.add(now, &f)
	}
	return r.finish(d, v, p.Packet)
}

// finish counts v and returns what is whole.
func (r *Reassembler) finish(d *datagram, v Verdict, packet []byte) ([]byte, Verdict) {
	r.counts[v]++
	switch v {
	case Atomic:
		return packet, v
	case Complete:
		return r.assemble(d), v
	}
	return nil, v
}

// hasHeaders reports whether b, which begins with that header, contains all headers up to
// that of the upper layer, and none that belongs before the fragment header or is one.
// Of the headers after it, the first byte must be there, as in Linux.
func hasHeaders(next uint8, b []byte) bool {
	const hopByHop, routing, fragmentHeader, destination = 0, 43, 44, 60
	for {
		switch next {
		case hopByHop, fragmentHeader:
			return false
		case routing, destination:
			if len(b) < 8 || len(b) < 8+8*int(b[1]) {
				return false
			}
			next, b = b[0], b[8+8*int(b[1]):]
		case wire.ProtocolTCP:
			return len(b) >= wire.TCPHeaderLen
		case wire.ProtocolUDP, wire.ProtocolICMPv6:
			return len(b) >= 8
		default:
			return len(b) > 0
		}
	}
}

// add adds a fragment to its datagram.
func (r *Reassembler) add(now Time, f *fragment) (*datagram, Verdict) {
	end := f.offset + len(f.data)
	switch {
	case len(f.data) == 0:
		return nil, Empty
	case f.more && len(f.data)%unit != 0:
		return nil, Misaligned
	}
	r.Expire(now)
	d := r.byKey[f.key]
	if d == nil {
		d = r.open(now, &f.key)
	}
	known := d.received(f)
	ecn := d.ecn | 1<<(f.tos&wire.ECNMask)
	v := Kept
	switch {
	case d.ended:
		return nil, Refused
	case d.total != 0 && (end > d.total || !f.more && end != d.total), !f.more && end < d.end:
		v = WrongEnd
	case known != 0 && (known < units(len(f.data)) || !d.equal(f)):
		v = Overlap
	case ecn&1 != 0 && ecn&(1<<wire.ECNMarked) != 0:
		v = WrongECN
	case known == 0 && d.fragments == r.cfg.Fragments:
		v = TooMany
	}
	if v != Kept {
		r.empty(d)
		d.ended = true
		return nil, v
	}
	d.ecn = ecn
	if !f.more {
		d.total = end
	}
	if known != 0 {
		return nil, Duplicate
	}
	if !r.makeRoom(d, f) {
		return nil, NoMemory
	}
	d.copy(f)
	d.fragments++
	d.units += units(len(f.data))
	d.end = max(d.end, end)
	if f.offset == 0 {
		d.header, d.link, d.first = f.header, f.link, len(f.data)
		headers := f.packet[:len(f.packet)-len(f.data)]
		d.head = append(d.head, headers[:min(len(headers), maxQuote(f.v6))]...)
	}
	if d.total == 0 || d.units < units(d.total) {
		return nil, Kept
	}
	return d, Complete
}

// units is the number of units that n bytes of data touch.
func units(n int) int { return (n + unit - 1) / unit }

// open makes a datagram, for which it may drop others.
func (r *Reassembler) open(now Time, k *key) *datagram {
	o := k.origin()
	byOrigin := func(s *source) bool { return s.origin == o }
	if i := slices.IndexFunc(r.sources, byOrigin); i >= 0 && r.sources[i].datagrams == r.cfg.PerSource {
		r.evict(r.sources[i])
	} else if len(r.datagrams) == r.cfg.Datagrams {
		r.evict(r.largest(func(s *source) int { return s.datagrams }))
	}
	var s *source
	if i := slices.IndexFunc(r.sources, byOrigin); i >= 0 {
		s = r.sources[i]
	} else {
		s = take(&r.freeSources)
		*s = source{origin: o}
		r.sources = append(r.sources, s)
	}
	s.datagrams++
	d := take(&r.freeDatagrams)
	*d = datagram{key: *k, source: s, due: now + Time(TimeoutIPv4), head: d.head[:0]}
	if k.v6 {
		d.due = now + Time(TimeoutIPv6)
	}
	r.nextDue = min(r.nextDue, d.due)
	if r.byKey == nil {
		r.byKey = make(map[key]*datagram)
	}
	r.byKey[*k] = d
	r.datagrams = append(r.datagrams, d)
	return d
}

// take takes an element from a free list, or makes one.
func take[T any](free *[]*T) *T {
	n := len(*free)
	if n == 0 {
		return new(T)
	}
	x := (*free)[n-1]
	*free = (*free)[:n-1]
	return x
}

// makeRoom gives d the pages that a fragment needs. If d is dropped for that it returns
// false.
func (r *Reassembler) makeRoom(d *datagram, f *fragment) bool {
	for i := f.offset / PageSize; i <= (f.offset+len(f.data)-1)/PageSize; i++ {
		if d.pages[i] != nil {
			continue
		}
		for len(r.freePages) == 0 && r.pages == r.maxPages {
			if r.evict(r.largest(func(s *source) int { return s.pages })) == d {
				return false
			}
		}
		if len(r.freePages) == 0 {
			r.pages++
		}
		p := take(&r.freePages)
		clear(p.have[:])
		d.pages[i] = p
		d.source.pages++
	}
	return true
}

// largest is the source that holds most, of several the one that has held something for longest.
func (r *Reassembler) largest(held func(*source) int) *source {
	return slices.MaxFunc(r.sources, func(a, b *source) int { return cmp.Compare(held(a), held(b)) })
}

// evict drops the oldest datagram of a source, and returns it.
func (r *Reassembler) evict(s *source) *datagram {
	i := slices.IndexFunc(r.datagrams, func(d *datagram) bool { return d.source == s })
	d := r.datagrams[i]
	if !d.ended {
		r.counts[Evicted]++
	}
	r.drop(d)
	r.datagrams = slices.Delete(r.datagrams, i, i+1)
	return d
}

// NextDeadline is when Expire next has something to do: the largest Time if there is nothing.
func (r *Reassembler) NextDeadline() Time { return r.nextDue }

// Expire drops the datagrams whose time is over, and reports them. The reassembler does that itself
// before it looks at a fragment.
func (r *Reassembler) Expire(now Time) {
	if now < r.nextDue {
		return
	}
	r.nextDue = never
	r.datagrams = slices.DeleteFunc(r.datagrams, func(d *datagram) bool {
		if now < d.due {
			r.nextDue = min(r.nextDue, d.due)
			return false
		}
		if !d.ended {
			r.counts[TimedOut]++
			r.report(d)
		}
		r.drop(d)
		return true
	})
}

// report tells the sender of a datagram that its time is over.
func (r *Reassembler) report(d *datagram) {
	if r.cfg.Report == nil || len(d.head) == 0 || d.link == (wire.LinkAddr{}) {
		return
	}
	quote := append(r.out[:0], d.head...)
	data := d.pages[0].data[:min(d.first, maxQuote(d.v6)-len(quote))] // less than a page
	r.cfg.Report(d.link, append(quote, data...))
}

// maxQuote is the most that an ICMP error quotes of a packet, in bytes.
func maxQuote(v6 bool) int {
	if v6 {
		return wire.MaxICMPv6ErrorLen - wire.ICMPv6HeaderLen
	}
	return wire.MaxICMPv4ErrorLen - wire.ICMPv4HeaderLen
}

// drop releases all that a datagram has. Its caller takes it out of r.datagrams.
func (r *Reassembler) drop(d *datagram) {
	r.empty(d)
	delete(r.byKey, d.key)
	if d.source.datagrams--; d.source.datagrams == 0 {
		i := slices.Index(r.sources, d.source)
		r.sources = slices.Delete(r.sources, i, i+1)
		r.freeSources = append(r.freeSources, d.source)
	}
	r.freeDatagrams = append(r.freeDatagrams, d)
}

// empty releases the pages of a datagram.
func (r *Reassembler) empty(d *datagram) {
	for i, p := range d.pages {
		if p != nil {
			r.freePages = append(r.freePages, p)
			d.pages[i] = nil
			d.source.pages--
		}
	}
}

// assemble writes the whole packet and drops the datagram.
func (r *Reassembler) assemble(d *datagram) []byte {
	if r.out == nil {
		r.out = make([]byte, 0, wire.IPv6HeaderLen+maxData)
	}
	tos := d.tos
	if d.ecn&(1<<wire.ECNMarked) != 0 {
		tos |= wire.ECNMarked
	}
	hdr := wire.IPv4HeaderLen
	if d.v6 {
		hdr = wire.IPv6HeaderLen
		wire.PutIPv6(r.out[:hdr], wire.IPv6Fields{
			TrafficClass: tos, FlowLabel: d.flow, PayloadLen: uint16(d.total), Protocol: d.header.protocol,
			HopLimit: d.ttl, Src: d.src, Dst: d.dst,
		})
	} else {
		wire.PutIPv4(r.out[:hdr], wire.IPv4Fields{
			TOS: tos, TTL: d.ttl, Protocol: d.header.protocol, TotalLen: uint16(hdr + d.total), ID: uint16(d.id),
			Src: [4]byte(d.src[:4]), Dst: [4]byte(d.dst[:4]),
		})
	}
	out := r.out[:hdr]
	for i := 0; len(out) < hdr+d.total; i++ {
		out = append(out, d.pages[i].data[:min(PageSize, hdr+d.total-len(out))]...)
	}
	i := slices.Index(r.datagrams, d)
	r.datagrams = slices.Delete(r.datagrams, i, i+1)
	r.drop(d)
	return out
}

// each calls do for the part of a fragment that lies in each page, with the offset of the part
// in the page, until do returns false.
func (d *datagram) each(f *fragment, do func(p *page, at int, part []byte) bool) bool {
	data := f.data
	for offset := f.offset; len(data) > 0; {
		at := offset % PageSize
		n := min(len(data), PageSize-at)
		if !do(d.pages[offset/PageSize], at, data[:n]) {
			return false
		}
		offset, data = offset+n, data[n:]
	}
	return true
}

// received is how many units of a fragment have been received.
func (d *datagram) received(f *fragment) (n int) {
	d.each(f, func(p *page, at int, part []byte) bool {
		if p != nil {
			n += p.received(at/unit, at/unit+units(len(part)))
		}
		return true
	})
	return n
}

// equal reports whether a fragment has the same bytes as what has been received for its units.
func (d *datagram) equal(f *fragment) bool {
	return d.each(f, func(p *page, at int, part []byte) bool { return bytes.Equal(p.data[at:at+len(part)], part) })
}

// copy takes the data of a fragment, all of whose pages are there.
func (d *datagram) copy(f *fragment) {
	d.each(f, func(p *page, at int, part []byte) bool {
		copy(p.data[at:], part)
		p.note(at/unit, at/unit+units(len(part)))
		return true
	})
}
