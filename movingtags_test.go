//go:build linux

package unet_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/mempath"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// looseLease lets a host bind sockets to ports that it does not hold. The mux is not asked, and the test claims the tags.
type looseLease struct{ endpoint.Lease }

func (looseLease) Claim(_ context.Context, t endpoint.Tag) (endpoint.Tag, error) { return t, nil }
func (looseLease) Unclaim(context.Context, endpoint.Tag) error                   { return nil }

// loose is an endpoint whose host has a socket at each port of its side all the time, whoever holds it.
type loose struct {
	host  *unet.Host
	lease endpoint.Lease // the mux's
	id    uint64
}

func openLoose(t *testing.T, m *mux.Mux, uid uint32) *loose {
	t.Helper()
	grant, lease, err := m.OpenEndpointFor(t.Context(), mux.Owner{PID: int(uid), UID: uid}, endpoint.Request{})
	testutil.Must(t, err)
	h, err := unet.New(t.Context(), grant, looseLease{lease}, unet.HostConfig{})
	if err != nil {
		testutil.Must(t, errors.Join(err, grant.Close(), lease.Close()))
	}
	t.Cleanup(func() { testutil.Must(t, h.Close()) })
	return &loose{h, lease, grant.ID}
}

// forge writes datagrams into memory paths to all readers until ctx ends: from each source port to each destination port, whoever holds
// them. No stack of its own looks at the tag table before. payload is of the datagram from the i-th source port to the d-th destination port.
func forge(ctx context.Context, t *testing.T, lease endpoint.Lease, link wire.LinkAddr, to []uint64, sources, destinations []movingTag, payload func(i, d int) []byte) {
	granted := make(chan *endpoint.Path)
	list := lease.Paths(ctx)
	go func() {
		defer close(granted)
		for p := range list {
			select {
			case granted <- p:
			case <-ctx.Done():
				p.Close()
			}
		}
	}()
	var paths []*mempath.Path
	for _, id := range to {
		if !testutil.Until(func() bool { return lease.OpenPath(ctx, id) == nil }) {
			t.Error("no path")
			return
		}
		to, ok := <-granted
		if !ok {
			return
		}
		p, err := mempath.Open(to)
		if err != nil {
			t.Error(err)
			return
		}
		defer p.Close()
		paths = append(paths, p)
	}
	for n := 0; ctx.Err() == nil; n++ {
		i, d := n%len(sources), n/len(sources)%len(destinations)
		for _, p := range paths {
			b := udpFrame(link, sources[i].tag, destinations[d].tag, payload(i, d))
			if room := p.Reserve(len(b)); room != nil {
				copy(room, b)
				p.Publish(len(b))
			}
			p.Flush()
		}
		if n%32 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// udpFrame is a datagram without a checksum.
func udpFrame(link wire.LinkAddr, src, dst endpoint.Tag, payload []byte) []byte {
	const headers = wire.IPv4HeaderLen + wire.UDPHeaderLen
	b := make([]byte, wire.EthernetHeaderLen+headers+len(payload))
	wire.PutEthernet(b, link, link, wire.EtherTypeIPv4)
	ip := b[wire.EthernetHeaderLen:]
	wire.PutIPv4(ip, wire.IPv4Fields{TTL: 64, Protocol: wire.ProtocolUDP, TotalLen: uint16(len(ip)), Src: src.Addr.As4(), Dst: dst.Addr.As4()})
	udp := ip[wire.IPv4HeaderLen:]
	binary.BigEndian.PutUint16(udp, src.Port)
	binary.BigEndian.PutUint16(udp[2:], dst.Port)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[wire.UDPHeaderLen:], payload)
	return b
}

// clock numbers events: one that happened before another has the lower number.
type clock struct{ atomic.Uint64 }

func (c *clock) now() uint64 { return c.Add(1) }

// movingTag is a tag that one endpoint releases and then another one claims, again and again.
type movingTag struct {
	tag endpoint.Tag

	mu      sync.Mutex
	tenures []tenure
}

// tenure is when an endpoint may have held a tag: from before the claim until after the release. Outside of its tenures it has
// not held it.
type tenure struct {
	by         *loose
	begin, end uint64
}

// move gives the tag to an endpoint, and takes it back when during has returned.
func (m *movingTag) move(ctx context.Context, c *clock, to *loose, during func()) error {
	m.mu.Lock()
	m.tenures = append(m.tenures, tenure{to, c.now(), math.MaxUint64})
	last := &m.tenures[len(m.tenures)-1]
	m.mu.Unlock()
	if _, err := to.lease.Claim(ctx, m.tag); err != nil {
		return err
	}
	during()
	err := to.lease.Unclaim(ctx, m.tag)
	m.mu.Lock()
	last.end = c.now()
	m.mu.Unlock()
	return err
}

// held reports whether an endpoint may have held the tag at a moment between two times. The later one is not in the future.
func (m *movingTag) held(by *loose, from, to uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(m.tenures) - 1; i >= 0 && m.tenures[i].end >= from; i-- { // one after the other
		if m.tenures[i].by == by && m.tenures[i].begin <= to {
			return true
		}
	}
	return false
}

// Tags move between endpoints while all of them send and receive, also under tags that they do not hold.
//
// A third writer is hostile: it writes into its paths without a stack, and holds the source ports by turns too.
//
// Two endpoints have a socket at each source port, and send from it to each destination port all the time. Two others have a socket at each
// destination port. The test itself claims the ports for one of the two and the other by turns, so no host knows what its
// endpoint holds, and none can be relied on to stop. A datagram says who has written it and when.
//
// What can be asserted: whether a frame may go from W to R under the tags S and D is decided after W has begun to write it and before R has
// read it from its socket, by whoever decides it: the programs of the mux on the way through a port, R by the tag table on the way through memory. So there was a
// moment between the two at which W held S, and one at which R held D. They need not be the same: through a port S is checked before D. The test knows only
// an interval in which each claim and each release took effect. So it takes an endpoint for the holder from before the claim
// until after the release, and accuses nobody wrongly: every frame that it objects to was let through while its tag was somebody else's, or nobody's.
func TestTagsMoveWhileFramesFly(t *testing.T) {
	const ports, moves, deliveries = 3, 50, 2000
	const forgery = 2 // in place of the number of a writer
	p := netlab.RequirePair(t, netlab.Config{})
	m := openMuxWith(t, p.A, mux.Config{Policy: mux.Permit(mux.Terms{Trusted: true})})
	var writers, readers [2]*loose
	for i := range 2 {
		writers[i], readers[i] = openLoose(t, m, uint32(2000+i)), openLoose(t, m, uint32(3000+i))
	}
	at := func(port int) netip.AddrPort { return netip.AddrPortFrom(p.A.IP(), uint16(port)) }
	var c clock
	var sources, destinations [ports]movingTag
	for i := range ports {
		sources[i].tag, destinations[i].tag = endpoint.UDPTag(at(7000+i)), endpoint.UDPTag(at(8000+i))
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var sending, receiving, moving sync.WaitGroup
	var delivered, forged atomic.Int64 // all datagrams, and those of the hostile writer
	bind := func(l *loose, port int) *unet.UDPConn {
		s, err := l.host.ListenPacket(t.Context(), "udp", at(port).String())
		testutil.Must(t, err)
		return s.(*unet.UDPConn)
	}
	for w, writer := range writers {
		for i := range ports {
			s := bind(writer, 7000+i)
			sending.Go(func() {
				defer s.Close()
				for n := 0; ctx.Err() == nil; n++ {
					d := n % ports
					b := binary.BigEndian.AppendUint64([]byte{byte(w), byte(i), byte(d)}, c.now())
					testutil.Renew(s)
					if _, err := s.WriteToUDPAddrPort(b, at(8000+d)); err != nil && !errors.Is(err, syscall.ENOBUFS) {
						t.Error(err)
						return
					}
					if n%32 == 0 {
						time.Sleep(50 * time.Microsecond) // the mux needs a processor to move tags
					}
				}
			})
		}
	}
	grant, lease, err := m.OpenEndpointFor(t.Context(), mux.Owner{PID: 4000, UID: 4000}, endpoint.Request{})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, errors.Join(lease.Close(), grant.Close())) })
	forger := &loose{lease: lease}
	holders := [2][]*loose{{writers[0], forger, writers[1], forger}, readers[:]}
	sending.Go(func() {
		forge(ctx, t, lease, grant.Identity.LinkAddr, []uint64{readers[0].id, readers[1].id}, sources[:], destinations[:], func(i, d int) []byte {
			return binary.BigEndian.AppendUint64([]byte{forgery, byte(i), byte(d)}, c.now())
		})
	})
	var sockets []*unet.UDPConn
	for _, reader := range readers {
		for d := range ports {
			s := bind(reader, 8000+d)
			sockets = append(sockets, s)
			receiving.Go(func() {
				for b := make([]byte, 100); ; {
					n, from, err := s.ReadFromUDPAddrPort(b)
					now := c.now()
					if errors.Is(err, net.ErrClosed) {
						return
					}
					if err != nil || n != 11 || b[0] > forgery || int(b[1]) >= ports || int(b[2]) != d || from != at(7000+int(b[1])) {
						t.Errorf("port %d: % x from %v, %v", 8000+d, b[:n], from, err)
						return
					}
					sent := binary.BigEndian.Uint64(b[3:])
					writer := forger
					if b[0] < forgery {
						writer = writers[b[0]]
					} else {
						forged.Add(1)
					}
					if !sources[b[1]].held(writer, sent, now) {
						t.Errorf("a datagram of %d, received at %d: its writer has not held its source port %d meanwhile", sent, now, from.Port())
					}
					if !destinations[d].held(reader, sent, now) {
						t.Errorf("a datagram of %d, received at %d: its reader has not held its destination port %d meanwhile", sent, now, 8000+d)
					}
					delivered.Add(1)
				}
			})
		}
	}
	total := func(name string) (n uint64) {
		for _, l := range append(writers[:], readers[:]...) {
			n += counted(l.host, name)
		}
		return n
	}
	for k := range 2 * ports {
		tag, holders := &sources[k/2], holders[k%2]
		if k%2 == 1 {
			tag = &destinations[k/2]
		}
		rng := rand.New(rand.NewPCG(uint64(k), 1))
		moving.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				// It stays until some datagrams were delivered to whoever, but not for ever: nothing may be, as the other tags are.
				most, until := rng.IntN(2000), delivered.Load()+rng.Int64N(30)
				err := tag.move(context.Background(), &c, holders[n%len(holders)], func() {
					for looks := 0; looks < most && delivered.Load() < until; looks++ {
						time.Sleep(10 * time.Microsecond)
					}
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	testutil.Eventually(t, fmt.Sprintf("%d moves of each tag, %d datagrams by memory, and some that were dropped there", moves, deliveries), func() bool {
		for i := range ports {
			for _, tag := range []*movingTag{&sources[i], &destinations[i]} {
				tag.mu.Lock()
				n := len(tag.tenures)
				tag.mu.Unlock()
				if n < moves {
					return t.Failed()
				}
			}
		}
		return t.Failed() || total("path_frames_received") >= deliveries && forged.Load() > 0 && total("path_denied") > 0
	})
	stop()
	sending.Wait()
	moving.Wait()
	t.Logf("%d datagrams, %d of the hostile writer; by memory %d; %d were dropped there", delivered.Load(), forged.Load(), total("path_frames_received"), total("path_denied"))
	for _, s := range sockets {
		s.Close()
	}
	receiving.Wait()
	if lies := total("path_lies"); lies != 0 {
		t.Errorf("%d lies", lies)
	}
}
