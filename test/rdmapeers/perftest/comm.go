//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// comm is the connection on which perftest's programs agree on what they do: TCP, or with -R a
// queue pair. They send in turn, the client first, and each knows the length of the next data.
type comm struct {
	io.ReadWriter
	client bool
	cm     bool // it is a queue pair
}

// version is the version of perftest's protocol in this program (configure.ac of 4.5-0.17).
// Programs of newer versions adapt to it.
const version = "6.06"

// exchange sends own, and returns what the peer sends in its place.
func (c *comm) exchange(own []byte) ([]byte, error) {
	theirs := make([]byte, len(own))
	read := func() error { _, err := io.ReadFull(c, theirs); return err }
	write := func() error { _, err := c.Write(own); return err }
	steps := []func() error{read, write}
	if c.client {
		steps = []func() error{write, read}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("exchange of %d bytes: %w", len(own), err)
		}
	}
	return theirs, nil
}

// agree exchanges versions, the sizes of a page and of a cache line, and the path MTU, coded as
// in ibv_mtu, of which the smaller one is returned.
func (c *comm) agree(mtu int) (int, error) {
	number := func(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }
	own := make([]byte, 16)
	copy(own, version)
	for _, b := range [][]byte{own, number(pageSize), number(64)} {
		if _, err := c.exchange(b); err != nil {
			return 0, err
		}
	}
	theirs, err := c.exchange([]byte{'0' + byte(mtu), 0})
	if err != nil {
		return 0, err
	}
	if theirs[0] < '1' || theirs[0] > '5' {
		return 0, fmt.Errorf("the peer's MTU is %q", theirs)
	}
	return min(mtu, int(theirs[0]-'0')), nil
}

// dest is what one side sends to the other about its queue pair and memory (struct pingpong_dest).
type dest struct {
	reads    uint32 // READs and atomics that it serves at a time
	qpn, psn uint32
	rkey     uint32
	vaddr    uint64
	addr     netip.Addr // as GID
}

// The lengths of a dest: as text, by TCP, and as a struct, by a queue pair.
const (
	textLen   = 108
	structLen = 56
)

// shake exchanges dests.
func (c *comm) shake(own dest) (dest, error) {
	if c.cm {
		b, err := c.exchange(own.appendStruct(nil))
		if err != nil {
			return dest{}, err
		}
		return parseStruct(b), nil
	}
	b, err := c.exchange(own.appendText(nil))
	if err != nil {
		return dest{}, err
	}
	return parseText(b)
}

func (d dest) appendText(b []byte) []byte {
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x:", 0, d.reads, d.qpn, d.psn, d.rkey, d.vaddr)
	for _, x := range d.addr.As16() {
		b = fmt.Appendf(b, "%02x:", x)
	}
	return append(fmt.Appendf(b, "%08x:", 0), 0)
}

func parseText(b []byte) (d dest, err error) {
	f := strings.Split(string(bytes.TrimRight(b, "\x00")), ":") // LID, reads, QPN, PSN, rkey, address, 16 of the GID, SRQN
	if len(f) < 23 {
		return d, fmt.Errorf("the peer sent %q", b)
	}
	var n [22]uint64
	for i := range n {
		if n[i], err = strconv.ParseUint(f[i], 16, 64); err != nil {
			return d, fmt.Errorf("the peer sent %q: %w", b, err)
		}
	}
	var gid [16]byte
	for i := range gid {
		gid[i] = byte(n[6+i])
	}
	return dest{uint32(n[1]), uint32(n[2]), uint32(n[3]), uint32(n[4]), n[5], netip.AddrFrom16(gid).Unmap()}, nil
}

func (d dest) appendStruct(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 0) // LID
	b = binary.BigEndian.AppendUint32(b, d.reads)
	b = binary.BigEndian.AppendUint32(b, d.qpn)
	b = binary.BigEndian.AppendUint32(b, d.psn)
	b = binary.BigEndian.AppendUint32(b, d.rkey)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, d.vaddr)
	gid := d.addr.As16()
	return append(append(b, gid[:]...), make([]byte, 8)...) // SRQN, index of the GID
}

func parseStruct(b []byte) dest {
	word := binary.BigEndian.Uint32
	return dest{word(b[4:]), word(b[8:]), word(b[12:]), word(b[16:]), binary.BigEndian.Uint64(b[24:]), netip.AddrFrom16([16]byte(b[32:])).Unmap()}
}

// finish is how a connection ends.
func (c *comm) finish(own dest) error {
	if _, err := c.shake(own); err != nil || c.cm {
		return err
	}
	_, err := io.WriteString(c, "done\x00")
	return err
}

// report exchanges the reports of a bandwidth test, of which this side has none.
func (c *comm) report() error {
	for range 5 { // size, iterations, peak, average, message rate
		if _, err := c.exchange(make([]byte, 8)); err != nil {
			return err
		}
	}
	return nil
}
