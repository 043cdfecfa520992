//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/account"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// publishing opens an endpoint of a user with the TCP port 7000 that publishes connections to n ports of a remote address.
func (l *lab) publishing(uid uint32, rates endpoint.Rates, remote string, n int) *mux.Lease {
	l.t.Helper()
	table, err := datapath.NewConnections()
	testutil.Must(l.t, err)
	defer table.Close()
	for i := range n {
		table.Records()[i] = record("10.0.0.1:7000", fmt.Sprint(remote, ":", 1000+i), uint32(i))
	}
	g, lease, err := l.openAs(mux.Owner{PID: os.Getpid(), UID: uid}, mux.Terms{Rates: rates}, endpoint.Request{
		Geometry: small, Tags: []endpoint.Tag{tcpTag("10.0.0.1:7000")}, Connections: table.File(),
	})
	testutil.Must(l.t, err)
	testutil.Must(l.t, g.Close())
	return lease
}

// sentFor calls f and returns what the mux has sent for endpoints, and not sent, meanwhile.
func (l *lab) sentFor(f func()) (uplink, local, refused uint64) {
	l.t.Helper()
	before := l.count()
	f()
	after := l.count()
	moved := func(name string) uint64 { return after[name] - before[name] }
	return moved("mux_uplink"), moved("mux_local"), moved("mux_rate")
}

// The RSTs of a user come out of its bucket, whatever number of leases ends, and those that do not are counted.
func TestResetsAreWithinRateOfUser(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	setNeighbour(t, l.A, "10.0.0.2", l.B.LinkAddr)
	for uid, rates := range map[uint32]endpoint.Rates{
		4242: {User: packets(20)},
		4243: {User: endpoint.Rate{Bytes: 1, ByteBurst: 20 * 54}},
	} {
		begin, passed := time.Now(), uint64(0)
		for range 2 {
			lease := l.publishing(uid, rates, "10.0.0.2", 100)
			sent, _, refused := l.sentFor(func() { testutil.Must(t, lease.Close()) })
			if sent+refused != 100 {
				t.Errorf("%d RSTs sent and %d not, of 100", sent, refused)
			}
			passed += sent
		}
		within(t, fmt.Sprintf("%+v", rates), passed, 20, begin)
	}
	begin := time.Now()
	lease := l.publishing(4244, endpoint.Rates{Endpoint: packets(20)}, "10.0.0.2", 100)
	sent, _, _ := l.sentFor(func() { testutil.Must(t, lease.Close()) })
	within(t, "the endpoint's rate", sent, 20, begin)
}

// A user without rates has a bound, too, which does not begin again with each endpoint.
func TestResetsOfUserWithoutRateAreBounded(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	setNeighbour(t, l.A, "10.0.0.2", l.B.LinkAddr)
	begin, passed := time.Now(), uint64(0)
	for range 3 {
		lease := l.publishing(4242, endpoint.Rates{}, "10.0.0.2", 15_000)
		sent, _, refused := l.sentFor(func() { testutil.Must(t, lease.Close()) })
		if sent+refused != 15_000 {
			t.Errorf("%d RSTs sent and %d not, of 15000", sent, refused)
		}
		passed += sent
	}
	if most := mux.OwnBurst + uint64(mux.OwnRate*time.Since(begin).Seconds()) + 1; passed > most {
		t.Errorf("%d RSTs sent in %v, want at most %d", passed, time.Since(begin), most)
	}
}

// A connection that is published several times gets one RST.
func TestOneResetForEachConnection(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	setNeighbour(t, l.A, "10.0.0.2", l.B.LinkAddr)
	table, err := datapath.NewConnections()
	testutil.Must(t, err)
	defer table.Close()
	records := table.Records()
	for i := range records {
		records[i] = record("10.0.0.1:7000", fmt.Sprint("10.0.0.2:", 1000+i%3), uint32(i))
	}
	a := l.openRequest(endpoint.Request{Tags: []endpoint.Tag{tcpTag("10.0.0.1:7000")}, Connections: table.File()})
	if sent, _, refused := l.sentFor(func() { testutil.Must(t, a.lease.Close()) }); sent != 3 || refused != 0 {
		t.Errorf("%d RSTs sent and %d not, want 3 and none", sent, refused)
	}
}

// RSTs to an endpoint of the same host are in the balance of counters, also if its backlog or its rings are full:
// there are more than both hold (1,000 and 2,048), and fewer than a loaded machine sends in resetTime.
func TestResetsToEndpointAreAccountedFor(t *testing.T) { // not parallel, because of resetTime
	const connections = 6000
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
			if mode == mux.ModeNative {
				listenGRO(t, l.B)
			}
			l.openMux(mode)
			l.open(endpoint.AddrTag(netip.MustParseAddr("10.0.0.50")))
			lease := l.publishing(4242, endpoint.Rates{}, "10.0.0.50", connections)
			_, local, refused := l.sentFor(func() { testutil.Must(t, lease.Close()) })
			if local < connections || refused != 0 {
				t.Errorf("%d RSTs sent and %d not, want %d", local, refused, connections)
			}
			v, err := account.Settle(t.Context(), func() ([]endpoint.Counter, error) { return l.counters(), nil })
			testutil.Must(t, err)
			if !v.Balanced() {
				t.Errorf("%+v, counters %v", v, l.count())
			}
		})
	}
}

// What a claim makes the mux and the kernel send comes out of the user's bucket; without enough there is no
// claim.
func TestClaimsArePaid(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	owned := endpoint.AddrTag(netip.MustParseAddr("10.0.0.50"))
	open := func(r endpoint.Rate) *mux.Lease {
		t.Helper()
		g, lease, err := l.openAs(mux.Owner{PID: os.Getpid(), UID: 4242}, mux.Terms{Rates: endpoint.Rates{Endpoint: r}}, endpoint.Request{Geometry: small})
		testutil.Must(t, err)
		testutil.Must(t, g.Close())
		return lease
	}
	lease := open(packets(10))
	if sent, _, _ := l.sentFor(func() { _, err := lease.Claim(t.Context(), owned); testutil.Must(t, err) }); sent < 3 {
		t.Errorf("%d frames are counted, want the 3 probes", sent)
	}
	_, err := lease.Claim(t.Context(), udpTag("239.1.2.3:5000"))
	testutil.Must(t, err)
	lease = open(endpoint.Rate{Bytes: 1, ByteBurst: 1})
	for _, tag := range []endpoint.Tag{endpoint.AddrTag(netip.MustParseAddr("10.0.0.51")), udpTag("239.1.2.4:5000")} {
		_, _, refused := l.sentFor(func() {
			if _, err := lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrBusy) {
				t.Errorf("claim %v without packets: %v", tag, err)
			}
		})
		if refused == 0 {
			t.Errorf("claim %v without packets: nothing is counted", tag)
		}
	}
}
