//go:build linux

package attack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// Users. The kernel counts the registered memory and the descriptors in flight of a user for the
// whole machine, so no other package uses these users.
const (
	attackerID  = 65530
	neighbourID = 65533
	idleID      = 65532 // connects to unetd and then does nothing
	strangerID  = 65531 // gets nothing by the policy
	limitedID   = 65529 // may send limitedRate packets a second
	ringsID     = 65528 // may have many endpoints and ringsMemory

	// Attackers whose endpoint is revoked get no other for a minute, so each case has
	// an attacker of its own.
	firstFreshAttacker = 65000
	freshAttackers     = 100
)

// What the policy permits the attacker at once.
const (
	attackerEndpoints = 8
	attackerMemory    = 128 << 20 // bytes
)

// ringsMemory is the memory of ringsID, in bytes.
const ringsMemory = 16 << 20

// What the limited user may send: packets a second of all its endpoints together, and of each.
const (
	limitedRate         = 10_000
	limitedBurst        = 100 // by the default burst of the policy, 10 ms
	limitedEndpointRate = 5_000
)

// policy has a rule for each kind of user.
var policy = os.Expand(`
rules:
  - name: root
    users: [0]
    tags: ["udp:*:*", "tcp:*:*", "addr:*", "msg:*"]
    endpoints: unlimited
    memory: unlimited
    trusted: true
    operator: true
  - name: attacker
    users: [$attackers]
    tags:
      - udp:$host:7000-39999
      - tcp:$host:7000-39999
      - udp:[$host6]:7000-39999
      - tcp:[$host6]:7000-39999
      - addr:$attackerAddr
      - addr:$attackerAddr6
      - msg:$attackerTags
    endpoints: $endpoints
    memory: ${memory}MiB
  - name: limited
    users: [$limited]
    tags: ["udp:$host:7000-39999", "tcp:$host:7000-39999"]
    endpoints: 4
    memory: 64MiB
    rates: {endpoint: {packets: $limitedEndpointRate/s}, user: {packets: $limitedRate/s}}
  - name: rings
    users: [$rings]
    tags: ["msg:*"]
    endpoints: 64
    memory: ${ringsMemory}MiB
  - name: hoarders
    users: [$hoarders]
    tags: ["udp:$host:$hoardedPorts-39999", "tcp:$host:$hoardedPorts-39999", "addr:$hoardedAddrs"]
    endpoints: 32
    memory: 64MiB
  - name: idle
    users: [$idle]
    tags: ["msg:*"]
    endpoints: 8
    memory: 64MiB
  - name: neighbour
    users: [$neighbour]
    tags:
      - udp:$host:*
      - tcp:$host:*
      - udp:[$host6]:*
      - addr:$neighbourAddr
      - addr:$neighbourAddr6
      - addr:$hoardedAddrs
      - msg:$neighbourTag
    endpoints: 8
    memory: 128MiB
`, func(name string) string {
	return fmt.Sprint(map[string]any{
		"attackers": attackers(), "limited": limitedID, "limitedRate": limitedRate, "limitedEndpointRate": limitedEndpointRate, "idle": idleID, "rings": ringsID, "ringsMemory": ringsMemory >> 20, "neighbour": neighbourID,
		"hoarders": users(firstHoarder, hoarders), "hoardedPorts": hoardedPorts, "hoardedAddrs": hoardedAddrs,
		"host": hostA, "host6": hostA6, "attackerAddr": attackerAddr, "attackerAddr6": attackerAddr6,
		"attackerTags": fmt.Sprintf("%d-%d", attackerTag, attackerTag+0xfff), "endpoints": attackerEndpoints, "memory": attackerMemory >> 20,
		"neighbourAddr": neighbourAddr, "neighbourAddr6": neighbourAddr6, "neighbourTag": neighbourTag,
	}[name])
})

// attackers lists those users.
func attackers() string {
	return fmt.Sprintf("%d, %s", attackerID, users(firstFreshAttacker, freshAttackers))
}

// users lists n users from one on.
func users(first, n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprint(first+i))
	}
	return strings.Join(list, ", ")
}

// freshAttacker is an attacker's uid that no case has used before.
func (w *world) freshAttacker() uint32 {
	w.usedAttackers++
	return firstFreshAttacker + w.usedAttackers - 1
}

// world is the two hosts, unetd on host A, and the bystanders.
type world struct {
	pair      *netlab.Pair
	unetd     *unetd.Daemon
	capture   *capture
	kernel    []*bystander
	neighbour *agentProcess // the neighbour
	pins      *os.File      // unetd's BPF file system

	batches       uint32
	usedAttackers uint32
}

func newWorld(t testing.TB) *world { t.Helper(); return newWorldOn(t, netlab.Config{IPv6: true}) }

func newWorldOn(t testing.TB, cfg netlab.Config) *world {
	t.Helper()
	w := &world{pair: netlab.RequirePair(t, cfg)}
	w.capture = startCapture(t, w.pair.B, false)
	var err error
	if w.pins, err = netlab.OpenBPFFS("0755"); err != nil { // more open than it should be
		t.Fatal(err)
	}
	t.Cleanup(func() { w.pins.Close() })
	w.unetd = unetd.Serve(t, w.pair.A, unetd.Options{Policy: policy, BPFFS: netlab.PathTo(w.pins), Flags: []string{"--metrics", metricsAddr}})
	w.kernel = startKernelTraffic(t, w.pair)
	w.neighbour = startAgent(t, w.pair.A, neighbourID)
	openNeighbour.do(t, w.neighbour, neighbourArg{w.unetd.Socket, netip.AddrPortFrom(hostB, kernelPort), true})
	return w
}

// counters are the counters of frames of the mux, by name.
func (w *world) counters(t testing.TB) map[string]uint64 {
	t.Helper()
	return countersOf(t, w.unetd)
}

// countersOf are unetd's counters of frames, by name.
func countersOf(t testing.TB, d *unetd.Daemon) map[string]uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), unetd.TestTimeout)
	defer cancel()
	all, err := control.Operator{Socket: d.Socket}.Counters(ctx)
	if err != nil {
		t.Fatalf("counters: %v", err)
	}
	byName := make(map[string]uint64)
	for _, c := range all {
		if !strings.HasPrefix(c.Name, "lease_") { // the neighbour opens endpoints beside every case
			byName[c.Name] = c.Value
		}
	}
	return byName
}

// list is the endpoints of unetd.
func list(t testing.TB, d *unetd.Daemon) []endpoint.Info {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), unetd.TestTimeout)
	defer cancel()
	all, err := control.Operator{Socket: d.Socket}.List(ctx)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return all
}

// since is what has been counted between two readings.
func since(before, after map[string]uint64) map[string]uint64 {
	diff := make(map[string]uint64)
	for name, v := range after {
		if v != before[name] {
			diff[name] = v - before[name]
		}
	}
	return diff
}

// snapshot returns the counts of all bystanders.
func (w *world) snapshot(t testing.TB) (all []requestCounts) {
	t.Helper()
	for _, b := range w.kernel {
		all = append(all, b.snapshot())
	}
	if w.neighbour != nil {
		all = append(all, neighbourCounts.do(t, w.neighbour, nothing{})...)
	}
	return all
}

// harmSince waits until every bystander has had an answer to a request that it made
// after now, and returns what has gone wrong since before. Worst is the longest
// wait of all.
func (w *world) harmSince(t testing.TB, before []requestCounts) (harm []string, worst requestCounts) {
	t.Helper()
	now := w.snapshot(t)
	last := now
	testutil.Until(func() bool {
		last = w.snapshot(t)
		for i := range last {
			now[i].Longest = max(now[i].Longest, last[i].Longest)
			if last[i].Answered < now[i].Answered+2 && last[i].Lost+last[i].Wrong == before[i].Lost+before[i].Wrong {
				return false
			}
		}
		return true
	})
	for i, b := range last {
		if b.Lost != before[i].Lost || b.Wrong != before[i].Wrong {
			harm = append(harm, fmt.Sprintf("%s: %d lost, %d wrong (%s)", b.Name, b.Lost-before[i].Lost, b.Wrong-before[i].Wrong, b.FirstError))
		} else if b.Answered < now[i].Answered+2 {
			harm = append(harm, fmt.Sprintf("%s gets no answers any more", b.Name))
		}
		// unetd's answers take a pause of their own.
		if !strings.HasSuffix(b.Name, "unetd") && now[i].Longest > worst.Longest {
			worst = now[i]
		}
	}
	return harm, worst
}

// unharmed checks that no case has harmed the bystanders, and adds the result to the row.
func (w *world) unharmed(t testing.TB, r *row, before []requestCounts) {
	t.Helper()
	select {
	case <-w.unetd.Done:
		t.Errorf("unetd has ended: %v", w.unetd.Err)
		return
	default:
	}
	harm, worst := w.harmSince(t, before)
	for _, h := range harm {
		t.Errorf("harm: %s", h)
		r.note("HARM: %s", h)
	}
	for _, frame := range w.capture.newEscaped() {
		t.Errorf("left the uplink: %s", frame)
		r.note("LEFT THE UPLINK: %s", frame)
	}
	if missed, err := w.capture.missed(); missed != 0 || err != nil {
		t.Errorf("the capture missed %d frames, %v", missed, err)
	}
	r.note("longest answer beside it: %s, %s", worst.Name, rounded(worst.Longest))
}

// newBatch is a new number for a mark.
func (w *world) newBatch() uint32 {
	w.batches++
	return w.batches
}

// rounded is a duration as people read it.
func rounded(d time.Duration) string {
	if d < time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}
