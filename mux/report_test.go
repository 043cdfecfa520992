//go:build linux

package mux

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// table is a file with these bytes.
func table(t *testing.T, b []byte) *published {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "table"))
	if err == nil {
		_, err = f.Write(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &published{f, wire.ConnectionsVersion}
}

// The sums are those of the first 255 records of a table. Impossible values are left out.
func TestTotalsOfTable(t *testing.T) {
	b := make([]byte, 600*wire.ConnectionLen)
	binary.NativeEndian.PutUint64(b[16+8:], 77) // received
	record := func(n int, protocol, state uint8, remotePort uint16, words map[int]uint64) {
		r := b[n*wire.ConnectionLen:]
		binary.NativeEndian.PutUint16(r[32:], 7000)
		binary.NativeEndian.PutUint16(r[34:], remotePort)
		r[40], r[41] = state, protocol
		for at, v := range words {
			binary.NativeEndian.PutUint64(r[at:], v)
		}
	}
	const rtt, sent, in, acked, again = 64, 96, 104, 112, 120
	record(1, wire.ProtocolTCP, 1, 0, nil)
	record(3, wire.ProtocolTCP, 4, 9, map[int]uint64{rtt: 2000, sent: 10, again: 1, in: 100, acked: 50})
	record(4, wire.ProtocolTCP, 4, 9, map[int]uint64{rtt: 4000, sent: 20, again: 2, in: 1, acked: 2})
	record(5, wire.ProtocolTCP, 4, 9, map[int]uint64{rtt: uint64(2 * time.Hour)}) // not believed
	record(255, wire.ProtocolUDP, 0, 0, nil)
	record(256, wire.ProtocolUDP, 0, 0, nil)
	part := make([]byte, 1<<15)
	e, s := table(t, b).total(part)
	if want := (SocketTotals{UDP: 1, Listening: 1, Connections: 3, Segments: 30, Again: 3, BytesAcked: 52, BytesIn: 101, RTT: 3000}); s != want || e == nil || e.Received != 77 {
		t.Errorf("%+v, %+v, want %+v", e, s, want)
	}
	for _, p := range []*published{nil, table(t, nil), table(t, b[:wire.ConnectionLen-1]), {version: 1}} {
		if e, s := p.total(part); e != nil || s != (SocketTotals{}) {
			t.Errorf("%+v, %+v", e, s)
		}
	}
	closed := table(t, b)
	closed.Close()
	if e, s := closed.total(part); e != nil || s != (SocketTotals{}) {
		t.Errorf("%+v, %+v", e, s)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		if _, s := table(t, b).total(part); s.RTT < 0 || s.RTT > time.Hour || s.UDP+s.Listening+s.Connections > 255 {
			t.Errorf("%+v", s)
		}
	}
}
