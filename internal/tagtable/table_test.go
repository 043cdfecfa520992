//go:build linux

package tagtable

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// open makes a table in a memfd, and a view of it.
func open(t testing.TB) (*Table, *View) {
	t.Helper()
	table, err := Create("", "")
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, table.Close()) })
	return table, view(t, table)
}

func view(t testing.TB, table *Table) *View {
	t.Helper()
	v, err := Open(testutil.Value(table.Reader()))
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, v.Close()) })
	return v
}

// address is the nth address of a test; every third one is IPv6.
func address(n int) netip.Addr {
	if n%3 == 0 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(n >> 8), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
}

// holder asks a view for the holder of a tag's first port, and of the last one.
func holder(t testing.TB, v *View, tag endpoint.Tag) uint64 {
	t.Helper()
	proto := wire.ProtocolUDP
	if tag.Kind == endpoint.TagTCP {
		proto = wire.ProtocolTCP
	}
	first, last := v.Holder(wire.AddrFrom(tag.Addr), proto, tag.Port), v.Holder(wire.AddrFrom(tag.Addr), proto, tag.LastPort())
	if first != last {
		t.Fatalf("%v: %d holds its first port, %d its last", tag, first, last)
	}
	return first
}

// model is what a table should show.
type model struct {
	whole map[netip.Addr]uint64
	port  map[endpoint.Tag]uint64 // without blocks
	held  map[netip.Addr]int      // ports of an address
}

func newModel() *model {
	return &model{whole: map[netip.Addr]uint64{}, port: map[endpoint.Tag]uint64{}, held: map[netip.Addr]int{}}
}

func (m *model) holder(t endpoint.Tag) uint64 {
	if id := m.whole[t.Addr]; id != 0 || t.Kind == endpoint.TagAddr {
		return id
	}
	t.Block = false
	return m.port[t]
}

// full reports whether the table has no area for an address without ports.
func (m *model) full(a netip.Addr) bool { return m.held[a] == 0 && len(m.held) >= areas }

func (m *model) set(t endpoint.Tag, id uint64) {
	if t.Kind == endpoint.TagAddr {
		m.whole[t.Addr] = id
		return
	}
	last := t.LastPort()
	for t.Block = false; ; t.Port++ {
		if m.port[t] == 0 {
			m.held[t.Addr]++
		}
		m.port[t] = id
		if t.Port == last {
			return
		}
	}
}

func (m *model) clear(t endpoint.Tag) {
	if t.Kind == endpoint.TagAddr {
		delete(m.whole, t.Addr)
		return
	}
	last := t.LastPort()
	for t.Block = false; ; t.Port++ {
		if m.port[t] != 0 {
			if m.held[t.Addr]--; m.held[t.Addr] == 0 {
				delete(m.held, t.Addr)
			}
		}
		delete(m.port, t)
		if t.Port == last {
			return
		}
	}
}

// anyTag returns a tag of one of n addresses. Few ports, so that the same ones come again.
func anyTag(r *rand.Rand, n int) endpoint.Tag {
	a := address(1 + r.IntN(n))
	ap := netip.AddrPortFrom(a, uint16(65535-r.IntN(130)))
	switch r.IntN(6) {
	case 0:
		return endpoint.AddrTag(a)
	case 1:
		return endpoint.UDPTag(ap).AsBlock()
	case 2:
		return endpoint.TCPTag(ap).AsBlock()
	case 3:
		return endpoint.TCPTag(ap)
	}
	return endpoint.UDPTag(ap)
}

// TestModel compares a table with a model, through many changes of more addresses than have areas.
func TestModel(t *testing.T) {
	table, v := open(t)
	m := newModel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	fulls := 0
	for range 50_000 {
		tag := anyTag(r, 2*areas)
		id := 1 + r.Uint64N(5)
		switch {
		case r.IntN(2) == 0:
			table.Clear(tag)
			m.clear(tag)
		case tag.Kind == endpoint.TagAddr && m.held[tag.Addr] > 0: // the mux refuses it
		case tag.Kind != endpoint.TagAddr && m.whole[tag.Addr] != 0:
			testutil.Must(t, table.Set(tag, id)) // by the holder of the address; ignored
		case tag.Kind != endpoint.TagAddr && m.full(tag.Addr):
			fulls++
			if err := table.Set(tag, id); !errors.Is(err, ErrFull) {
				t.Fatalf("%v, with ports of %d addresses: %v, want ErrFull", tag, len(m.held), err)
			}
		default:
			testutil.Must(t, table.Set(tag, id))
			m.set(tag, id)
		}
		for _, look := range [...]endpoint.Tag{tag, anyTag(r, 2*areas)} {
			look.Block = false
			if got, want := holder(t, v, look), m.holder(look); look.Kind != endpoint.TagAddr && got != want {
				t.Fatalf("%v: endpoint %d holds it, want %d", look, got, want)
			} else if look.Kind == endpoint.TagAddr && v.Holder(wire.AddrFrom(look.Addr), wire.ProtocolICMP, 0) != want {
				t.Fatalf("%v: not held by endpoint %d", look, want)
			}
		}
	}
	if fulls == 0 {
		t.Error("the table was never full")
	}
}

// TestManyAddresses fills the table with addresses, and empties it again.
func TestManyAddresses(t *testing.T) {
	table, v := open(t)
	set := func(n int) error { return table.Set(endpoint.AddrTag(address(n)), uint64(n)) }
	for n := 1; n <= mostUsed; n++ {
		testutil.Must(t, set(n))
	}
	if err := set(mostUsed + 1); !errors.Is(err, ErrFull) {
		t.Fatalf("one more than %d addresses: %v, want ErrFull", mostUsed, err)
	}
	if err := table.Set(endpoint.UDPTag(netip.AddrPortFrom(address(mostUsed+1), 7)), 1); !errors.Is(err, ErrFull) {
		t.Fatalf("a port on one more than %d addresses: %v, want ErrFull", mostUsed, err)
	}
	for n := range mostUsed + 2 {
		if got, want := v.Holder(wire.AddrFrom(address(n)), wire.ProtocolTCP, 80), uint64(n%(mostUsed+1)); got != want {
			t.Fatalf("%v: endpoint %d holds it, want %d", address(n), got, want)
		}
	}
	for _, n := range rand.Perm(mostUsed) {
		table.Clear(endpoint.AddrTag(address(n + 1)))
		if got := v.Holder(wire.AddrFrom(address(n+1)), wire.ProtocolTCP, 80); got != 0 {
			t.Fatalf("%v, given back: endpoint %d holds it", address(n+1), got)
		}
	}
	if table.used != 0 {
		t.Errorf("%d slots keep an address", table.used)
	}
}

// TestIgnored sets tags that are not in the table.
func TestIgnored(t *testing.T) {
	table, v := open(t)
	for _, tag := range []endpoint.Tag{
		endpoint.UDPTag(netip.MustParseAddrPort("224.0.0.251:5353")),
		endpoint.UDPTag(netip.MustParseAddrPort("[ff02::fb]:5353")),
		endpoint.UDPTag(netip.MustParseAddrPort("255.255.255.255:68")),
		{Kind: endpoint.TagUDP, Port: 7},
	} {
		testutil.Must(t, table.Set(tag, 1))
		if got := holder(t, v, tag); got != 0 {
			t.Errorf("%v: endpoint %d holds it", tag, got)
		}
		table.Clear(tag)
	}
	if len(table.area) != 0 {
		t.Error("the file has an area")
	}
}

// Message tags have their holders, and leave half of the table for addresses.
func TestMessageTags(t *testing.T) {
	table, v := open(t)
	const extra = ^uint32(0)
	of := func(tag uint32) uint64 { return v.Holder(MessageAddr(tag), 0, 0) }
	for tag := range uint32(messages) {
		testutil.Must(t, table.Set(endpoint.MessageTag(tag*tag+1), uint64(tag+1)))
	}
	if err := table.Set(endpoint.MessageTag(extra), 1); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	testutil.Must(t, table.Set(endpoint.AddrTag(address(1)), 7))
	testutil.Must(t, table.Set(endpoint.MessageTag(1), 9)) // another holder needs no room
	for tag := range uint32(messages) {
		want := uint64(tag + 1)
		if tag == 0 {
			want = 9
		}
		if got := of(tag*tag + 1); got != want {
			t.Fatalf("message tag %d: endpoint %d holds it, want %d", tag*tag+1, got, want)
		}
		table.Clear(endpoint.MessageTag(tag*tag + 1))
		table.Clear(endpoint.MessageTag(tag*tag + 1)) // nobody has it
		if got := of(tag*tag + 1); got != 0 {
			t.Fatalf("message tag %d, given back: endpoint %d holds it", tag*tag+1, got)
		}
	}
	testutil.Must(t, table.Set(endpoint.MessageTag(extra), 1))
	if got := v.Holder(wire.AddrFrom(address(1)), wire.ProtocolTCP, 80); of(extra) != 1 || got != 7 {
		t.Errorf("endpoint %d holds the last message tag, %d the address", of(extra), got)
	}
}

func TestEpochs(t *testing.T) {
	table, v := open(t)
	const id = 3*epochs + 5
	before, other := v.Epoch(id), v.Epoch(id+1)
	table.Bump(id)
	if got := v.Epoch(id); got != before+1 || table.Epoch(id) != got {
		t.Errorf("epoch %d, was %d before the bump; the table says %d", got, before, table.Epoch(id))
	}
	if v.Epoch(id+1) != other {
		t.Error("the epoch of another endpoint has changed")
	}
}

// TestWhileItChanges looks tags up while another goroutine changes them. The ID of an endpoint says which tag it may hold.
func TestWhileItChanges(t *testing.T) {
	const (
		addresses = areas + 16
		whole     = 1 << 30 // the endpoint holds the whole address
	)
	idOf := func(tag endpoint.Tag, n int) uint64 {
		last := tag.Addr.As16()
		id := uint64(last[14])<<40 | uint64(last[15])<<32 | 1<<31 | uint64(n)
		if tag.Kind == endpoint.TagAddr {
			return id | whole
		}
		return id | uint64(tag.Kind)<<28 | uint64(tag.Port)<<4
	}
	table, _ := open(t)
	// Held all the time, in the midst of the others.
	steady := endpoint.UDPTag(netip.AddrPortFrom(address(1), 7))
	steadyAddr := endpoint.AddrTag(address(2))
	testutil.Must(t, errors.Join(table.Set(steady, 1), table.Set(steadyAddr, 2)))

	stop, ended := make(chan struct{}), make(chan error)
	for i := range 2 {
		v := view(t, table)
		r := rand.New(rand.NewPCG(uint64(i), 1))
		go func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					ended <- nil
					return
				default:
				}
				if got := v.Holder(wire.AddrFrom(steady.Addr), wire.ProtocolUDP, steady.Port); got != 1 {
					ended <- errors.New("a tag that does not change was lost")
					return
				}
				if got := v.Holder(wire.AddrFrom(steadyAddr.Addr), wire.ProtocolTCP, 1); got != 2 {
					ended <- errors.New("an address that does not change was lost")
					return
				}
				tag := endpoint.UDPTag(netip.AddrPortFrom(address(3+r.IntN(addresses)), uint16(r.IntN(4))))
				got := v.Holder(wire.AddrFrom(tag.Addr), wire.ProtocolUDP, tag.Port)
				if got != 0 && got&^15 != idOf(tag, 0) && got&^15 != idOf(endpoint.AddrTag(tag.Addr), 0) {
					ended <- errors.New("an endpoint holds a tag that it never had")
					return
				}
			}
		}()
	}
	r := rand.New(rand.NewPCG(1, 1))
	m := newModel()
	for n := range 100_000 {
		tag := endpoint.UDPTag(netip.AddrPortFrom(address(3+r.IntN(addresses)), uint16(r.IntN(4))))
		if r.IntN(3) == 0 {
			tag = endpoint.AddrTag(tag.Addr)
		}
		switch {
		case r.IntN(3) > 0:
			table.Clear(tag)
			m.clear(tag)
		case tag.Kind == endpoint.TagAddr && m.held[tag.Addr] > 0, tag.Kind != endpoint.TagAddr && (m.whole[tag.Addr] != 0 || m.held[tag.Addr] == 0 && len(m.held) == areas-1):
		default:
			testutil.Must(t, table.Set(tag, idOf(tag, n%16)))
			m.set(tag, 1)
		}
	}
	close(stop)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// FuzzDamaged opens a table of which some words have other values.
func FuzzDamaged(f *testing.F) {
	f.Add([]byte{}, int64(fixedSize+areaSize))
	f.Add([]byte{}, int64(fixedSize-8))
	f.Add([]byte{0, 0, 8, 0xff}, int64(fixedSize+areaSize))
	f.Add([]byte{1, 0, 3, 2, 1, 1, 3, 64, 1, 2, 3, 0xff}, int64(fixedSize))
	f.Fuzz(func(t *testing.T, changes []byte, size int64) {
		table, err := Create("", "")
		testutil.Must(t, err)
		defer table.Close()
		tags := []endpoint.Tag{endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:65535")), endpoint.TCPTag(netip.MustParseAddrPort("10.0.0.1:80")), endpoint.AddrTag(address(3))}
		for _, tag := range tags {
			testutil.Must(t, table.Set(tag, 7))
		}
		// A change is of word n of the header, or of the slot of a tag.
		for ; len(changes) >= 4; changes = changes[4:] {
			i := int(changes[2]) % headerWords
			if changes[0] > 0 {
				s, _ := table.w.find(wire.AddrFrom(tags[int(changes[1])%len(tags)].Addr))
				i = s + int(changes[2])%slotWords
			}
			if i != 0 {
				table.w.store(i, uint64(int64(int8(changes[3]))))
			}
		}
		reader := testutil.Value(table.Reader())
		testutil.Must(t, table.f.Truncate(min(max(size, 0), 2*maxSize)))
		v, err := Open(reader)
		if err != nil {
			if !errors.Is(err, errNotTable) {
				t.Errorf("%v, want an errNotTable", err)
			}
			reader.Close()
			return
		}
		defer v.Close()
		for _, tag := range tags {
			for _, proto := range []uint8{wire.ProtocolTCP, wire.ProtocolUDP, 0} {
				v.Holder(wire.AddrFrom(tag.Addr), proto, tag.Port)
			}
		}
		v.Epoch(^uint64(0))
	})
}

func BenchmarkHolder(b *testing.B) {
	table, v := open(b)
	port := netip.MustParseAddrPort("192.168.7.9:40000")
	testutil.Must(b, table.Set(endpoint.TCPTag(port).AsBlock(), 1))
	for n := range 200 {
		testutil.Must(b, table.Set(endpoint.AddrTag(address(n+1)), uint64(n)))
	}
	for _, c := range []struct {
		name string
		addr netip.Addr
		want uint64
	}{{"port", port.Addr(), 1}, {"address", address(100), 99}, {"nobody", netip.MustParseAddr("192.168.7.8"), 0}} {
		b.Run(c.name, func(b *testing.B) {
			a := wire.AddrFrom(c.addr)
			b.ReportAllocs()
			for b.Loop() {
				if v.Holder(a, wire.ProtocolTCP, port.Port()) != c.want {
					b.Fatal("another holder")
				}
			}
		})
	}
}
