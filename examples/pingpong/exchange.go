package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
)

// dest is what one side sends to the other about a queue pair.
type dest struct {
	qpn, psn uint32
	addr     netip.Addr // as the GID ::ffff:a.b.c.d
}

// destLen is the length of a dest on the exchange's connection:
// "0000:000000:000000:00000000000000000000000000000000", LID, QPN, PSN and GID, and a zero.
const destLen = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1

// done is what the client sends at the end of the exchange.
const done = "done\x00"

func (d dest) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID ::ffff:%v", 0, d.qpn, d.psn, d.addr)
}

func (d dest) appendTo(b []byte) []byte {
	gid := d.addr.As16()
	return append(fmt.Appendf(b, "%04x:%06x:%06x:%x", 0, d.qpn, d.psn, gid[:]), 0)
}

func parseDest(b []byte) (d dest, err error) {
	var lid uint16
	var text string
	n, err := fmt.Sscanf(string(b[:destLen-1]), "%04x:%06x:%06x:%32s", &lid, &d.qpn, &d.psn, &text)
	gid, hexErr := hex.DecodeString(text)
	if n != 4 || hexErr != nil || len(gid) != 16 {
		return d, fmt.Errorf("the peer sent %q instead of LID:QPN:PSN:GID: %w", b, err)
	}
	if d.addr = netip.AddrFrom16([16]byte(gid)).Unmap(); !d.addr.Is4() {
		return d, fmt.Errorf("the peer's GID is %v, not that of an IPv4 address: it needs option -g 1", d.addr)
	}
	return d, nil
}

// srqSlots is how many dests each side sends if it has a shared receive queue: those of unused
// queue pairs are zero.
const srqSlots = 256

// readDests reads slots dests, of which the first n are used.
func readDests(r io.Reader, slots, n int) ([]dest, error) {
	b := make([]byte, slots*destLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("read the peer's address: %w", err)
	}
	dests := make([]dest, n)
	for i := range dests {
		var err error
		if dests[i], err = parseDest(b[i*destLen:][:destLen]); err != nil {
			return nil, err
		}
	}
	return dests, nil
}

func writeDests(w io.Writer, slots int, dests []dest) error {
	var b []byte
	for i := range slots {
		d := dest{addr: netip.IPv6Unspecified()}
		if i < len(dests) {
			d = dests[i]
		}
		b = d.appendTo(b)
	}
	_, err := w.Write(b)
	return err
}

// exchangeClient is the client's side of the exchange: it sends its queue pairs, receives the
// server's, and confirms them.
func exchangeClient(c io.ReadWriter, slots int, own []dest) (remote []dest, err error) {
	if err = writeDests(c, slots, own); err != nil {
		return nil, err
	}
	if remote, err = readDests(c, slots, len(own)); err != nil {
		return nil, err
	}
	_, err = io.WriteString(c, done)
	return remote, err
}

// exchangeServer is the server's side. connect is called before the client may send.
func exchangeServer(c io.ReadWriter, slots int, own []dest, connect func(remote []dest) error) (remote []dest, err error) {
	if remote, err = readDests(c, slots, len(own)); err != nil {
		return nil, err
	}
	if err = connect(remote); err != nil {
		return nil, err
	}
	if err = writeDests(c, slots, own); err != nil {
		return nil, err
	}
	b := make([]byte, len(done))
	if _, err = io.ReadFull(c, b); err == nil && string(b) != done {
		err = fmt.Errorf("the peer sent %q, want %q", b, done)
	}
	return remote, err
}
