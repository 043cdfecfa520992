package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// rocePacket is one packet of a capture.
type rocePacket struct {
	file   string
	number int    // from 1
	packet []byte // from the IP header on
}

// udp is the payload of the UDP datagram.
func (p *rocePacket) udp() []byte {
	if p.packet[0]>>4 == 6 {
		return p.packet[48:]
	}
	return p.packet[RoCEOffset:]
}

func (p *rocePacket) String() string { return fmt.Sprintf("%s, frame %d", p.file, p.number) }

// captures are the packets of testdata.
func captures(t testing.TB) (all []*rocePacket) {
	files, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b = b[24:]
		for n := 1; len(b) > 0; n++ {
			length := binary.LittleEndian.Uint32(b[8:])
			all = append(all, &rocePacket{file: filepath.Base(file), number: n, packet: b[16+14 : 16+length : 16+length]})
			b = b[16+length:]
		}
	}
	return all
}

// isDamaged reports whether the invariant CRC of a captured packet is wrong.
func isDamaged(p *rocePacket) bool { return p.file == "host_requester.pcap" && p.number == 9 }

// naiveICRC computes the invariant CRC bit by bit, of a copy with ones for the fields that are masked.
func naiveICRC(packet []byte) uint32 {
	b := append(bytes.Repeat([]byte{0xff}, 8), packet[:len(packet)-4]...)
	masked, bth := []int{1, 8, 10, 11}, RoCEOffset
	if packet[0]>>4 == 6 {
		b[8] |= 0x0f
		masked, bth = []int{1, 2, 3, 7}, 48
	}
	for _, i := range append(masked, bth-2, bth-1, bth+4) {
		b[8+i] = 0xff
	}
	crc := ^uint32(0)
	for _, x := range b {
		crc ^= uint32(x)
		for range 8 {
			crc = crc>>1 ^ crc32.IEEE&-(crc&1)
		}
	}
	return ^crc
}

// The invariant CRCs of the captures are right, except in the packet that was damaged.
func TestCapturedICRC(t *testing.T) {
	for _, p := range captures(t) {
		if got := CheckICRC(p.packet); got == isDamaged(p) {
			t.Errorf("%v: CheckICRC %t", p, got)
		}
	}
}

// A change of a bit that the invariant CRC covers is an error; a change of another bit is none.
func TestICRCCoverage(t *testing.T) {
	seen := map[byte]bool{}
	for _, p := range captures(t) {
		version := p.packet[0] >> 4
		if seen[version] || len(p.udp()) < 100 {
			continue
		}
		seen[version] = true
		b := bytes.Clone(p.packet)
		for i := range len(b) * 8 {
			b[i/8] ^= 1 << (i % 8)
			want := naiveICRC(b) == binary.LittleEndian.Uint32(b[len(b)-4:]) && b[0] == p.packet[0]&0xf0|b[0]&0x0f &&
				(version != 4 || b[0] == 0x45) && (version != 6 || b[6] == p.packet[6])
			if CheckICRC(b) != want {
				t.Errorf("%v: bit %d of byte %d changed: CheckICRC %t", p, i%8, i/8, !want)
			}
			b[i/8] ^= 1 << (i % 8)
		}
	}
	if !seen[4] || !seen[6] {
		t.Fatal("the captures do not have both versions of IP", seen)
	}
}

func TestICRCOfAnyLength(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 600 {
		for _, first := range []byte{0x45, 0x60} {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(random.Uint32())
			}
			want := n >= RoCEOffset+BTHLen+ICRCLen
			if first == 0x60 {
				want = n >= 48+BTHLen+ICRCLen
			}
			if n > 6 {
				b[0], b[6] = first, ProtocolUDP
				if want {
					binary.LittleEndian.PutUint32(b[n-4:], naiveICRC(b))
				}
			}
			if got := CheckICRC(b); got != want {
				t.Errorf("IP version %d, %d bytes: %t", first>>4, n, got)
			}
		}
	}
	if CheckICRC(append([]byte{0x46}, make([]byte, 99)...)) || CheckICRC(make([]byte, 100)) {
		t.Error("accepted options, or version 0")
	}
}

// Writing what was read gives the packet that was read, but for the identification and what depends on it.
func TestRoCERoundTrip(t *testing.T) {
	seen := map[Opcode]int{}
	for _, p := range captures(t) {
		var h RoCE
		if err := h.Parse(p.udp()); err != nil {
			t.Errorf("%v: %v", p, err)
			continue
		}
		seen[h.Opcode]++
		b := bytes.Repeat([]byte{0xa5}, len(p.packet))
		at := PutRoCE(b, &h, len(h.Payload))
		n := SealRoCE(b, &RoCEFlow{SrcPort: 5}, at+copy(b[at:], h.Payload))
		if got := b[RoCEOffset : n-4]; !bytes.Equal(got, p.udp()[:len(got)]) {
			t.Errorf("%v:\nread  %x\nwrote %x", p, p.udp(), got)
		}
		if p.packet[0] != 0x45 {
			continue
		}
		flow := RoCEFlow{Src: [4]byte(p.packet[12:]), Dst: [4]byte(p.packet[16:]), SrcPort: binary.BigEndian.Uint16(p.packet[20:])}
		n = SealRoCE(b, &flow, at+len(h.Payload))
		want := bytes.Clone(p.packet)
		want[4], want[5] = 0, 0
		sealIPv4(want)
		binary.LittleEndian.PutUint32(want[len(want)-4:], naiveICRC(want))
		if !bytes.Equal(b[:n], want) {
			t.Errorf("%v:\nread  %x\nwrote %x", p, want, b[:n])
		}
	}
	for op := range 256 {
		if op := Opcode(op); layouts[op] != 0 && op != OpCNP && seen[op] == 0 {
			t.Logf("no capture of %v", op)
		}
	}
}

// allHeaders is a packet of an opcode with a value in every field that it has.
func allHeaders(op Opcode) (h RoCE) {
	h = RoCE{Opcode: op, Solicited: true, AckReq: true, FECN: true, BECN: true, PKey: 0x1234, DstQP: 0xabcdef, PSN: 0xfedcba}
	l := layouts[op]
	if l&(hasRETH|hasAtomicETH) != 0 {
		h.VA, h.RKey = 0x0102030405060708, 0xa1a2a3a4
	}
	if l&hasRETH != 0 {
		h.DMALen = 0xb1b2b3b4
	}
	if l&hasAtomicETH != 0 {
		h.SwapAdd, h.Compare = 0xc1c2c3c4c5c6c7c8, 0xd1d2d3d4d5d6d7d8
	}
	if l&hasAETH != 0 {
		h.Syndrome, h.MSN = 0x6f, 0xe1e2e3
	}
	if l&hasAtomicAck != 0 {
		h.Original = 0xf1f2f3f4f5f6f7f8
	}
	if l&hasImm != 0 {
		h.Imm = 0x21222324
	}
	if l&hasIETH != 0 {
		h.RKey = 0x31323334
	}
	if l&hasDETH != 0 {
		h.QKey, h.SrcQP = 0x41424344, 0x515253
	}
	return h
}

var roceFlow = RoCEFlow{Src: addrA, Dst: addrB, SrcPort: 0xc123, TOS: 0x2b}

// TestRoCEEveryOpcode writes and reads packets of every opcode, of all pad counts.
func TestRoCEEveryOpcode(t *testing.T) {
	for op := range 256 {
		op := Opcode(op)
		if layouts[op] == 0 {
			b := append([]byte{byte(op)}, make([]byte, 99)...)
			if err := new(RoCE).Parse(b); err != ErrOpcode {
				t.Errorf("%v: %v", op, err)
			}
			continue
		}
		for payload := range 70 {
			if layouts[op]&hasPayload == 0 && payload > 0 {
				break
			}
			want := allHeaders(op)
			want.Payload = bytes.Repeat([]byte{byte(payload) + 1}, payload)
			b := bytes.Repeat([]byte{0xa5}, 300)
			at := PutRoCE(b, &want, payload)
			n := SealRoCE(b, &roceFlow, at+copy(b[at:], want.Payload))
			if b[n] != 0xa5 {
				t.Fatalf("%v: wrote more than %d bytes", op, n)
			}
			p, err := parseIPv4(b[:n])
			if err != nil || p.TOS != roceFlow.TOS || p.Src != addrA || p.Dst != addrB {
				t.Fatalf("%v: %+v, %v", op, p, err)
			}
			u, err := ParseUDP(p.Payload, AddrFrom4(p.Src), AddrFrom4(p.Dst), false)
			if err != nil || u.SrcPort != roceFlow.SrcPort || u.DstPort != RoCEPort {
				t.Fatalf("%v: %+v, %v", op, u, err)
			}
			var got RoCE
			if err := got.Parse(u.Payload); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%v: %v\nread  %+v\nwrote %+v", op, err, got, want)
			}
			if !CheckICRC(p.Packet) || naiveICRC(p.Packet) != binary.LittleEndian.Uint32(b[n-4:]) {
				t.Fatalf("%v: invariant CRC of %d bytes of payload", op, payload)
			}
			// A shorter length is an error if the headers are not complete or the length cannot be right.
			for short := range len(u.Payload) {
				err := new(RoCE).Parse(u.Payload[:short])
				if short < int(layoutLens[op])+ICRCLen && err != ErrTruncated || (short%4 != 0 || layouts[op]&hasPayload == 0) && err == nil {
					t.Fatalf("%v, %d of %d bytes: %v", op, short, len(u.Payload), err)
				}
			}
		}
	}
}

func TestRoCEErrors(t *testing.T) {
	const bth = " 40 ffff 00 000011 80000001 "
	for _, c := range []struct {
		packet string
		want   error
	}{
		{"", ErrTruncated},
		{"04" + bth + "0000", ErrTruncated},
		{"04" + bth + "0000 0000", nil},
		{"04 41 ffff 00 000011 80000001 00000000", ErrVersion},
		{"15" + bth + "00000000", ErrOpcode},
		{"40" + bth + "00000000", ErrOpcode},                                     // RD
		{"36" + bth + "00000000 00000000", ErrOpcode},                            // UC SEND with invalidate
		{"2c" + bth + "00000000 00000000 00000000 00000000 00000000", ErrOpcode}, // UC READ
		{"66" + bth + "00000000 00000000 00000000 00000000 00000000", ErrOpcode}, // UD WRITE
		{"04" + bth + "aabb 00000000", ErrLength},
		{"04 50 ffff 00 000011 80000001 aabbcc00 00000000", nil},
		{"04 70 ffff 00 000011 80000001 aa000000 00000000", nil},
		{"04 50 ffff 00 000011 80000001 00000000", ErrLength}, // pad, and no payload
		{"11" + bth + "1f000001 00000000", nil},
		{"11" + bth + "1f000001 00000000 00000000", ErrLength}, // an ACK with payload
		{"11 50 ffff 00 000011 80000001 1f000001 00000000", ErrLength},
		{"11" + bth + "00000000", ErrTruncated},
		{"0c" + bth + "00000000 00000000 00000000 00000000 00000000", nil},
		{"0c" + bth + "00000000 00000000 00000000 00000000 aabbccdd 00000000", ErrLength},
		{"81" + bth + "00000000 00000000 00000000 00000000 00000000", nil},
		{"81" + bth + "00000000 00000000 00000000 00000000", ErrTruncated},
	} {
		if err := new(RoCE).Parse(unhex(t, c.packet)); err != c.want {
			t.Errorf("%s: %v, want %v", c.packet, err, c.want)
		}
	}
}

func TestOpcodeString(t *testing.T) {
	for op, want := range map[Opcode]string{
		OpSendFirst: "RC SEND_FIRST", TransportUC | OpWriteOnlyImm: "UC WRITE_ONLY_IMM", TransportUD | OpSendOnly: "UD SEND_ONLY", OpSendOnlyInv: "RC SEND_ONLY_INV",
		OpFetchAdd: "RC FETCH_ADD", OpCNP: "CNP", 0x15: "opcode 0x15", TransportUD: "opcode 0x60", 0xff: "opcode 0xff",
	} {
		equal(t, "opcode", op.String(), want)
	}
}

// TestTsharkAndRoCE compares with the dissector of Wireshark.
func TestTsharkAndRoCE(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("UNET_REQUIRE_TOOLS") == "1" {
			t.Fatal(err)
		}
		t.Skip("no tshark")
	}
	names := []string{"frame.number", "infiniband.bth.opcode", "infiniband.bth.se", "infiniband.bth.padcnt", "infiniband.bth.tver", "infiniband.bth.p_key", "infiniband.bth.destqp",
		"infiniband.bth.a", "infiniband.bth.psn", "infiniband.deth.q_key", "infiniband.deth.srcqp", "infiniband.reth.va", "infiniband.reth.r_key", "infiniband.reth.dmalen",
		"infiniband.atomiceth.swapdt", "infiniband.atomiceth.cmpdt", "infiniband.aeth.syndrome", "infiniband.aeth.msn", "infiniband.atomicacketh.origremdt",
		"infiniband.immdt", "infiniband.ieth", "infiniband.invariant.crc"}
	args := []string{"-n", "-T", "fields", "-E", "occurrence=f"}
	for _, n := range names {
		args = append(args, "-e", n)
	}
	all := captures(t)
	// One file of them all, of the link type "raw IP".
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	file = append(file, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 101, 0, 0, 0)
	for _, p := range all {
		file = append(file, make([]byte, 8)...) // time
		file = binary.LittleEndian.AppendUint32(file, uint32(len(p.packet)))
		file = binary.LittleEndian.AppendUint32(file, uint32(len(p.packet)))
		file = append(file, p.packet...)
	}
	cmd := exec.Command(tshark, append(args, "-r", "-")...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME=") // without preferences of a user
	cmd.Stdin = bytes.NewReader(file)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	equal(t, "frames", len(lines), len(all))
	crcs := 0
	for i, p := range all {
		var h RoCE
		if err := h.Parse(p.udp()); err != nil {
			t.Fatal(p, err)
		}
		values := strings.Split(lines[i], "\t")
		for k, name := range names {
			if values[k] == "" {
				continue // the packet has no such field
			}
			field := name[strings.LastIndex(name, ".")+1:]
			base := 0
			if field == "immdt" || field == "ieth" {
				base = 16 // bytes
			}
			tsharks, err := strconv.ParseUint(values[k], base, 64)
			if err != nil {
				t.Fatal(p, name, err)
			}
			ours := map[string]uint64{"number": uint64(i + 1), "opcode": uint64(h.Opcode), "se": uint64(bit(h.Solicited)), "padcnt": uint64(-len(h.Payload) & 3), "tver": 0,
				"p_key": uint64(h.PKey), "destqp": uint64(h.DstQP), "a": uint64(bit(h.AckReq)), "psn": uint64(h.PSN), "q_key": uint64(h.QKey), "srcqp": uint64(h.SrcQP),
				"va": h.VA, "r_key": uint64(h.RKey), "dmalen": uint64(h.DMALen), "swapdt": h.SwapAdd, "cmpdt": h.Compare, "syndrome": uint64(h.Syndrome), "msn": uint64(h.MSN),
				"origremdt": h.Original, "immdt": uint64(h.Imm), "ieth": uint64(h.RKey), "crc": uint64(binary.BigEndian.Uint32(p.packet[len(p.packet)-4:]))}[field]
			if ours != tsharks {
				t.Errorf("%v: %s: %#x, tshark has %#x", p, name, ours, tsharks)
			}
			if field == "crc" {
				crcs++
			}
		}
		for field, bits := range map[string]layout{"infiniband.reth.dmalen": hasRETH, "infiniband.atomiceth.cmpdt": hasAtomicETH, "infiniband.aeth.msn": hasAETH,
			"infiniband.immdt": hasImm, "infiniband.ieth": hasIETH, "infiniband.deth.srcqp": hasDETH, "infiniband.atomicacketh.origremdt": hasAtomicAck} {
			for k, name := range names {
				if name == field && (values[k] != "") != (layouts[h.Opcode]&bits != 0) {
					t.Errorf("%v: %v: tshark's %s is %q", p, h.Opcode, name, values[k])
				}
			}
		}
	}
	if crcs < len(all)*3/4 { // it has none where it takes the payload for that of another protocol
		t.Errorf("tshark has read the invariant CRC of %d packets of %d", crcs, len(all))
	}
}

func TestRoCENoAllocations(t *testing.T) {
	b, payload := make([]byte, 300), make([]byte, 64)
	var in RoCE
	out := allHeaders(OpWriteOnlyImm)
	if n := testing.AllocsPerRun(100, func() {
		at := PutRoCE(b, &out, len(payload))
		n := SealRoCE(b, &roceFlow, at+copy(b[at:], payload))
		if !CheckICRC(b[:n]) || in.Parse(b[RoCEOffset:n]) != nil {
			t.Error("not read")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzParseRoCE: what is accepted is written again as it was, but for reserved bits, pad and MigReq.
func FuzzParseRoCE(f *testing.F) {
	for _, p := range captures(f) {
		if len(p.udp()) < 200 {
			f.Add(p.udp())
		}
	}
	cnp := make([]byte, 200)
	f.Add(cnp[RoCEOffset:SealRoCE(cnp, &roceFlow, PutRoCE(cnp, &RoCE{Opcode: OpCNP, BECN: true}, 0))])
	f.Fuzz(func(t *testing.T, udp []byte) {
		var h, again RoCE
		if h.Parse(udp) != nil {
			return
		}
		if 4+BTHLen+len(h.Payload) > len(udp) || cap(h.Payload) != len(h.Payload) {
			t.Fatalf("%x: payload of %d bytes", udp, len(h.Payload))
		}
		b := make([]byte, RoCEOffset+len(udp))
		at := PutRoCE(b, &h, len(h.Payload))
		n := SealRoCE(b, &roceFlow, at+copy(b[at:], h.Payload))
		if err := again.Parse(b[RoCEOffset:n]); n != len(b) || err != nil || !reflect.DeepEqual(h, again) {
			t.Fatalf("%x: %v\nread    %+v\nwritten %+v", udp, err, h, again)
		}
		if !CheckICRC(b) {
			t.Fatalf("%x: written with a wrong invariant CRC", udp)
		}
	})
}

func FuzzCheckICRC(f *testing.F) {
	for _, p := range captures(f) {
		if len(p.packet) < 120 {
			f.Add(p.packet)
		}
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) < 64 || packet[0] != 0x45 && (packet[0]>>4 != 6 || packet[6] != ProtocolUDP) {
			if len(packet) < 44 && CheckICRC(packet) {
				t.Errorf("%x: accepted", packet)
			}
			return
		}
		was := bytes.Clone(packet)
		want := naiveICRC(packet)
		if got := CheckICRC(packet); got != (want == binary.LittleEndian.Uint32(packet[len(packet)-4:])) || !bytes.Equal(was, packet) {
			t.Errorf("%x: %t, want %08x", packet, got, want)
		}
		binary.LittleEndian.PutUint32(packet[len(packet)-4:], want)
		if !CheckICRC(packet) {
			t.Errorf("%x: refused", packet)
		}
	})
}

var roceSizes = []int{0, 64, 1024, 4096}

func BenchmarkCheckICRC(b *testing.B) {
	for _, n := range roceSizes {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := make([]byte, 60+n)
			at := PutRoCE(p, &RoCE{Opcode: OpSendOnly}, n)
			p = p[:SealRoCE(p, &roceFlow, at+n)]
			for b.Loop() {
				if !CheckICRC(p) {
					b.Fatal("wrong")
				}
			}
		})
	}
}

func BenchmarkWriteRoCE(b *testing.B) {
	for _, n := range roceSizes {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p, payload := make([]byte, 60+n), make([]byte, n)
			h := RoCE{Opcode: OpSendOnly, PKey: 0xffff, DstQP: 0x11}
			for b.Loop() {
				h.PSN++
				at := PutRoCE(p, &h, n)
				SealRoCE(p, &roceFlow, at+copy(p[at:], payload))
			}
		})
	}
}

func BenchmarkParseRoCE(b *testing.B) {
	p := make([]byte, 200)
	at := PutRoCE(p, &RoCE{Opcode: OpWriteOnly, PKey: 0xffff, DstQP: 0x11}, 64)
	p = p[RoCEOffset:SealRoCE(p, &roceFlow, at+64)]
	var h RoCE
	for b.Loop() {
		if h.Parse(p) != nil {
			b.Fatal("not read")
		}
	}
}
