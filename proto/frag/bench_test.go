package frag

import (
	"testing"

	"github.com/unet-go/unet/wire"
)

// BenchmarkReassemble reassembles datagrams of 8,192 bytes from packets of 1,500, with other
// datagrams that never become complete: none, and as many as are held.
func BenchmarkReassemble(b *testing.B) {
	for name, others := range map[string]int{"alone": 0, "full": DefaultDatagrams} {
		b.Run(name, func(b *testing.B) {
			r := New(Config{})
			for i := range others {
				f := zeros(false, 0, 80, true)
				f.src = [16]byte{10, 1, byte(i >> 8), byte(i)}
				input(b, r, 0, f.packet())
			}
			var packets []wire.IPv4
			for p := range Pieces(8200, 1480) {
				var ip wire.IPv4
				if err := ip.Parse(zeros(false, p.Offset, p.Len, p.More).packet()); err != nil {
					b.Fatal(err)
				}
				packets = append(packets, ip)
			}
			b.SetBytes(8192)
			for b.Loop() {
				for i := range packets {
					r.IPv4(0, &packets[i], linkA)
				}
			}
			if r.Count(Complete) != uint64(b.N) {
				b.Fatalf("%d complete of %d", r.Count(Complete), b.N)
			}
		})
	}
}
