//go:build linux

package tables_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux/internal/tables"
)

// newTables makes the maps of a mux without its programs. change changes their description.
func newTables(t *testing.T, change func(*ebpf.CollectionSpec)) *tables.Tables {
	t.Helper()
	netlab.RequireXDP(t)
	spec, err := bpf.LoadMux()
	testutil.Must(t, err)
	clear(spec.Programs)
	spec.Maps[bpf.MuxMapSockets].MaxEntries = 1
	if change != nil {
		change(spec)
	}
	objects, err := ebpf.NewCollection(spec)
	testutil.Must(t, err)
	defer objects.Close()
	b := &tables.Tables{}
	testutil.Must(t, objects.Assign(&b.MuxMaps))
	t.Cleanup(func() { b.Close() })
	return b
}

// The universe of the model.
var (
	modelAddrs = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fe80::7")}
	modelRates = []endpoint.Rate{{Packets: 1000, PacketBurst: 10}, {Bytes: 1 << 20, ByteBurst: 1 << 16}, {Packets: 5, PacketBurst: 1, Bytes: 7, ByteBurst: 3000}}
	modelTags  = func() (list []endpoint.Tag) {
		for _, a := range modelAddrs {
			for _, port := range []uint16{1, 64, 65, 50000} {
				ap := netip.AddrPortFrom(a, port)
				list = append(list, endpoint.UDPTag(ap), endpoint.TCPTag(ap), endpoint.UDPTag(ap).AsBlock(), endpoint.TCPTag(ap).AsBlock())
			}
			list = append(list, endpoint.AddrTag(a))
		}
		slices.SortFunc(list, func(a, b endpoint.Tag) int { return len(a.String()) - len(b.String()) })
		return append(list, endpoint.MessageTag(1), endpoint.MessageTag(1<<31))
	}()
	modelGroups = []endpoint.Tag{
		endpoint.UDPTag(netip.MustParseAddrPort("224.0.0.251:5353")), endpoint.UDPTag(netip.MustParseAddrPort("255.255.255.255:68")),
		endpoint.UDPTag(netip.MustParseAddrPort("[ff02::fb]:5353")),
	}
)

type limit struct {
	rate endpoint.Rate
	uid  uint32
}

// model is what the tables have.
type model struct {
	t         *testing.T
	b         *tables.Tables
	rng       *rand.Rand
	devices   []uint32 // ports of groups; the first is the uplink
	tags      map[endpoint.Tag]bpf.Owner
	groups    map[endpoint.Tag]map[uint32]bool
	endpoints map[bpf.Owner]bpf.Endpoint
	limits    map[uint32]limit
	own       map[[16]byte]uint8
}

// Random changes of all tables have the effect that they have on Go's maps.
func TestTablesAreLikeMaps(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	b := newTables(t, nil)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &model{
		t: t, b: b, rng: rand.New(rand.NewPCG(seed, 0)),
		tags: map[endpoint.Tag]bpf.Owner{}, groups: map[endpoint.Tag]map[uint32]bool{}, endpoints: map[bpf.Owner]bpf.Endpoint{},
		limits: map[uint32]limit{}, own: map[[16]byte]uint8{},
	}
	testutil.Must(t, p.A.Do(func() error { // a set of devices accepts those of the thread's namespace
		for _, name := range []string{p.A.Interface, "port0", "port1", "port2"} {
			if name != p.A.Interface {
				testutil.Must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "end" + name}))
			}
			l, err := netlink.LinkByName(name)
			testutil.Must(t, err)
			m.devices = append(m.devices, uint32(l.Attrs().Index))
		}
		for step := range 3000 {
			m.change()
			if step%50 == 0 || step == 2999 {
				m.compare()
			}
			if t.Failed() {
				return fmt.Errorf("at step %d", step)
			}
		}
		for i := range uint32(bpf.TagCounts) {
			testutil.Must(t, b.TagCounts.Put(i, i))
		}
		testutil.Must(t, b.Recount(maps.Keys(m.tags), maps.Keys(m.groups)))
		m.compare()
		return nil
	}))
}

func pick[T any](m *model, list []T) T { return list[m.rng.IntN(len(list))] }

func (m *model) owner() bpf.Owner {
	return bpf.Owner{Port: m.rng.Uint32N(5), Queue: uint16(m.rng.IntN(3)), Room: 2048}
}

// wants reports an error that is not the expected one.
func (m *model) wants(what string, err, want error) {
	m.t.Helper()
	if !errors.Is(err, want) || want == nil && err != nil {
		m.t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// change makes one change.
func (m *model) change() {
	b := m.b
	switch m.rng.IntN(10) {
	case 0, 1, 2:
		m.putTag(pick(m, modelTags))
	case 3:
		t, effective := pick(m, modelTags), m.rng.IntN(2) == 0
		o, there := m.tags[t]
		if !there {
			m.wants("suspend an absent tag", b.SetEffect(t, m.owner(), false), ebpf.ErrKeyNotExist)
			return
		}
		m.tags[t] = o.WithEffect(effective)
		m.wants("suspend", b.SetEffect(t, o.WithEffect(true), effective), nil)
	case 4, 5:
		t := pick(m, modelTags)
		_, there := m.tags[t]
		deleted, err := b.DeleteTag(t)
		if m.wants("delete a tag", err, nil); deleted != there {
			m.t.Errorf("%v deleted: %v, was there: %v", t, deleted, there)
		}
		delete(m.tags, t)
		if a := t.Addr.As16(); there && t.Kind == endpoint.TagAddr && m.own[a] == bpf.OwnEndpoint {
			delete(m.own, a)
		}
	case 6:
		o := m.owner()
		if m.rng.IntN(2) == 0 {
			delete(m.endpoints, o)
			m.wants("delete an endpoint", b.DeleteEndpoint(o), nil)
			return
		}
		e := bpf.Endpoint{Id: m.rng.Uint64(), Cookie: m.rng.Uint64(), Uid: m.rng.Uint32(), Slot: m.rng.Uint32()}
		m.endpoints[o] = e
		m.wants("put an endpoint", b.PutEndpoint(o, e), nil)
	case 7:
		key := m.rng.Uint32N(6)
		if m.rng.IntN(2) == 0 {
			delete(m.limits, key)
			m.wants("delete a limit", tables.DeleteLimit(b.PortLimits, key), nil)
			return
		}
		l := limit{pick(m, modelRates), pick(m, []uint32{1000, bpf.NoUser})}
		m.limits[key] = l
		m.wants("put a limit", tables.PutLimit(b.PortLimits, key, l.rate, l.uid), nil)
	case 8:
		m.own = map[[16]byte]uint8{}
		for t := range m.tags {
			if t.Kind == endpoint.TagAddr {
				m.own[t.Addr.As16()] = bpf.OwnEndpoint
			}
		}
		for _, a := range append(slices.Clone(modelAddrs), netip.MustParseAddr("10.0.0.255"), netip.MustParseAddr("192.168.7.7")) {
			if m.rng.IntN(3) == 0 { // the host may take an owned address
				m.own[a.As16()] = pick(m, []uint8{bpf.OwnAddress, bpf.OwnBroadcast, bpf.OwnHost})
			}
		}
		others, err := b.PutOwn(maps.Clone(m.own))
		if m.wants("put the host's addresses", err, nil); others != 0 {
			m.t.Errorf("%d addresses found no room", others)
		}
	case 9:
		m.changeGroup(pick(m, modelGroups))
	}
}

func (m *model) putTag(t endpoint.Tag) {
	o := m.owner()
	if _, there := m.tags[t]; there {
		if t.Kind != endpoint.TagAddr { // a mux never puts a tag twice
			m.wants("put a tag again", m.b.PutTag(t, o), ebpf.ErrKeyExist)
		}
		return
	}
	m.wants("put a tag", m.b.PutTag(t, o), nil)
	m.tags[t] = o
	if a := t.Addr.As16(); t.Kind == endpoint.TagAddr && m.own[a] == 0 {
		m.own[a] = bpf.OwnEndpoint
	}
}

func (m *model) changeGroup(t endpoint.Tag) {
	b, uplink := m.b, m.devices[0]
	members := m.groups[t]
	if members == nil {
		m.groups[t] = map[uint32]bool{}
		m.wants("open a group", errors.Join(b.CountTag(t, 1), b.PutGroup(t, uplink)), nil)
		return
	}
	if len(members) == 0 && m.rng.IntN(2) == 0 {
		delete(m.groups, t)
		m.wants("delete a group", b.DeleteGroup(t), nil)
		return
	}
	port := pick(m, m.devices[1:])
	if m.rng.IntN(2) == 0 {
		delete(members, port)
		m.wants("delete a member", b.DeleteMember(t, port), nil)
	} else {
		members[port] = true
		m.wants("put a member", b.PutMember(t, port), nil)
	}
	m.wants("count the members", b.CountMembers(t, len(members)), nil)
}

// same compares a table with the model.
func same[K comparable, V any](m *model, what string, got, want map[K]V, err error) {
	m.t.Helper()
	testutil.Must(m.t, err)
	if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
		m.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// compare compares all tables with the model.
func (m *model) compare() {
	m.t.Helper()
	b := m.b
	tags, err := b.AllTags()
	same(m, "tags", tags, m.tags, err)
	endpoints, err := b.AllEndpoints()
	same(m, "endpoints", endpoints, m.endpoints, err)

	groups, err := b.AllGroups()
	sets := map[endpoint.Tag]map[uint32]bool{}
	for t, ports := range groups {
		sets[t] = map[uint32]bool{}
		for _, port := range ports {
			sets[t][port] = true
		}
		var n uint32
		testutil.Must(m.t, b.Groups.Lookup(bpf.GroupKey(netip.AddrPortFrom(t.Addr, t.Port)), &n))
		if int(n) != len(ports) {
			m.t.Errorf("%v has %d members, and the programs know of %d", t, len(ports), n)
		}
	}
	same(m, "groups", sets, m.groups, err)

	keys, err := tables.LimitKeys(b.PortLimits)
	limits := map[uint32]limit{}
	for _, key := range keys {
		l, there, err := tables.ReadLimit(b.PortLimits, key)
		if err != nil || !there {
			m.t.Errorf("limit %d: %v, %v", key, there, err)
		}
		limits[key] = limit{tables.RateOf(&l), l.Uid}
	}
	same(m, "limits", limits, m.limits, err)

	own := map[[16]byte]uint8{}
	var addr [16]byte
	var kind uint8
	entries := b.Own.Iterate()
	for entries.Next(&addr, &kind) {
		own[addr] = kind
	}
	same(m, "addresses", own, m.own, entries.Err())
	var filter bpf.OwnFilter
	testutil.Must(m.t, b.OwnFilters.Lookup(uint32(0), &filter))
	for a, kind := range own {
		if filter.Kinds[a[15]]&(1<<kind) == 0 {
			m.t.Errorf("the filter hides %v of kind %d", netip.AddrFrom16(a), kind)
		}
	}

	counts, got := map[uint32]uint32{}, map[uint32]uint32{}
	for _, list := range []map[endpoint.Tag]bool{keysOf(m.tags), keysOf(m.groups)} {
		for t := range list {
			if t.Kind != endpoint.TagMessage {
				counts[bpf.CountOf(tables.KindOf(t), t.Port)]++
			}
		}
	}
	for i := range uint32(bpf.TagCounts) {
		var n uint32
		testutil.Must(m.t, b.TagCounts.Lookup(i, &n))
		if n != 0 {
			got[i] = n
		}
	}
	same(m, "tag counts", got, counts, nil)
}

func keysOf[V any](m map[endpoint.Tag]V) map[endpoint.Tag]bool {
	set := map[endpoint.Tag]bool{}
	for t := range m {
		set[t] = true
	}
	return set
}

// A tag that finds no room leaves nothing, and addresses of the uplink are kept rather than those of other interfaces.
func TestFullTablesRefuse(t *testing.T) {
	b := newTables(t, func(spec *ebpf.CollectionSpec) {
		spec.Maps[bpf.MuxMapTags].MaxEntries, spec.Maps[bpf.MuxMapOwn].MaxEntries = 2, 2
	})
	m := &model{t: t, b: b, tags: map[endpoint.Tag]bpf.Owner{}, own: map[[16]byte]uint8{}, rng: rand.New(rand.NewPCG(1, 1))}
	m.putTag(endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:7")))
	m.putTag(endpoint.AddrTag(netip.MustParseAddr("10.0.0.5")))
	for _, full := range []endpoint.Tag{endpoint.TCPTag(netip.MustParseAddrPort("10.0.0.1:7")), endpoint.AddrTag(netip.MustParseAddr("10.0.0.6")), endpoint.MessageTag(4)} {
		if err := b.PutTag(full, m.owner()); !errors.Is(err, tables.ErrFull) || !errors.Is(err, endpoint.ErrBusy) {
			t.Errorf("%v into a full table: %v", full, err)
		}
		m.compare()
	}

	host := netip.MustParseAddr("192.168.0.1")
	m.own = map[[16]byte]uint8{modelAddrs[0].As16(): bpf.OwnAddress, modelAddrs[1].As16(): bpf.OwnBroadcast}
	want := maps.Clone(m.own)
	want[host.As16()] = bpf.OwnHost
	others, err := b.PutOwn(want)
	if others != 1 || err != nil {
		t.Errorf("%d addresses found no room: %v", others, err)
	}
	m.compare()
	if err := b.PutTag(endpoint.AddrTag(netip.MustParseAddr("fd00::6")), m.owner()); !errors.Is(err, tables.ErrFull) {
		t.Errorf("an owned address beside too many of the host: %v", err)
	}
	m.compare()
}

// A counter that user space adds to is summed over processors.
func TestCountersAdd(t *testing.T) {
	b := newTables(t, nil)
	for _, n := range []int{3, 4} {
		testutil.Must(t, b.AddToCounter(bpf.MuxRate, n))
	}
	if sum, err := b.Counter(bpf.MuxRate); sum != 7 || err != nil {
		t.Errorf("%d, %v", sum, err)
	}
}
