//go:build linux

package attack

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
)

// attackCase is one attack: its name, what it does, and the function that does it.
type attackCase struct {
	name, did string
	run       func(s *caseRun)
}

// caseRun is the world while a case runs.
type caseRun struct {
	*testing.T
	*world
	row *row
}

// runCase runs a case and then checks that nothing forbidden has happened.
func (w *world) runCase(t *testing.T, c attackCase) {
	s := &caseRun{t, w, results.add(t, c.name, c.did)}
	begin, countsBefore, counted := time.Now(), w.snapshot(t), w.counters(t)
	defer func() {
		if counts := unusual(since(counted, w.counters(t))); counts != "" {
			s.row.note("%s", counts)
		}
		s.row.note("it took %s", rounded(time.Since(begin)))
		w.unharmed(t, s.row, countsBefore)
	}()
	c.run(s)
}

// usual are the counters that count without any attack, too.
var usual = []string{"rx_pass", "rx_port", "tx_uplink", "tx_local", "tx_host", "rx_host", "deliver_socket"}

// unusual writes counters, without those of ordinary traffic.
func unusual(counts map[string]uint64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if !slices.Contains(usual, name) {
			parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
		}
	}
	return strings.Join(parts, ", ")
}

// attacker is an agent with an endpoint.
type attacker struct {
	*agentProcess
	openedEndpoint
}

// startAttacker starts an attacker's process and opens an endpoint in it.
func (s *caseRun) startAttacker(req endpoint.Request) *attacker {
	s.Helper()
	a := startAgent(s, s.pair.A, attackerID)
	return &attacker{a, openEndpoint.do(s, a, openArg{s.unetd.Socket, req})}
}

// tagged is a request for an endpoint with tags.
func tagged(tags ...endpoint.Tag) endpoint.Request { return endpoint.Request{Tags: tags} }

// batch is a number of frames that are expected to end in the same way.
type batch struct {
	s      *caseRun
	number uint32
	legal  bool
	want   []string // counters that may count them
	frames []outFrame
}

// Ends of a frame that are not counters.
const (
	inKernel = "kernel" // the kernel refuses or drops it before the mux
)

// forged is a batch of frames that must not get through. Each of them is counted
// by one of the named counters.
func (s *caseRun) forged(want ...string) *batch {
	return &batch{s: s, number: s.newBatch(), want: want}
}

// permitted is a batch of frames that leave the uplink.
func (s *caseRun) permitted() *batch { return &batch{s: s, number: s.newBatch(), legal: true} }

// mark is what the batch's frames carry.
func (v *batch) mark() []byte {
	if v.legal {
		return mark(legal, v.number)
	}
	return mark(forged, v.number)
}

// add puts frames into the batch.
func (v *batch) add(frames ...[]byte) {
	for _, f := range frames {
		v.frames = append(v.frames, outFrame{Frame: f})
	}
}

// addCut puts a frame in several descriptors into the batch.
func (v *batch) addCut(frame []byte, cuts ...int) {
	v.frames = append(v.frames, outFrame{frame, cuts})
}

// send sends the batch and checks what became of it.
func (v *batch) send(by *attacker) {
	v.s.Helper()
	before := v.s.counters(v.s)
	result := sendFrames.do(v.s, by.agentProcess, sendArg{by.Endpoint, v.frames})
	legalOnes := 0
	if v.legal {
		legalOnes = len(v.frames)
	}
	v.check(by, before, result, legalOnes)
}

// sweep sends a frame with all values of a number in it, of which some are legal.
func (v *batch) sweep(by *attacker, frame []byte, at, size int, first, last uint64, legalRanges ...[2]uint64) {
	v.s.Helper()
	before := v.s.counters(v.s)
	result := sweep.do(v.s, by.agentProcess, sweepArg{by.Endpoint, frame, at, size, first, last, legalRanges})
	legalOnes := 0
	for _, r := range legalRanges {
		legalOnes += int(r[1] - r[0] + 1)
	}
	v.check(by, before, result, legalOnes)
}

// check waits until all frames are accounted for.
func (v *batch) check(by *attacker, before map[string]uint64, result sendResult, legalOnes int) {
	v.s.Helper()
	if result.Errno != "" {
		v.s.Errorf("batch %d: kick: %s", v.number, result.Errno)
	}
	illegal := result.Frames - uint64(legalOnes)
	var counts map[string]uint64
	account := func() (wanted, others uint64) {
		counts = since(before, v.s.counters(v.s))
		for name, n := range counts {
			switch {
			case slices.Contains(v.want, name):
				wanted += n
			case isTransmitDrop(name):
				others += n
			}
		}
		return wanted, others
	}
	mayStayInKernel := slices.Contains(v.want, inKernel)
	done := func() bool {
		wanted, _ := account()
		return (wanted == illegal || mayStayInKernel && wanted <= illegal) && v.s.capture.legalFrames(v.number) == legalOnes
	}
	wait := testutil.Until
	if v.s.Failed() {
		wait = func(holds func() bool) bool { return holds() }
	}
	ok := wait(done)
	wanted, others := account()
	if !ok || others != 0 {
		v.s.Errorf("batch %d of %d frames, %d of them legal: %d counted as %v, %d legal ones at host B, %d descriptors refused; all counters: %v",
			v.number, result.Frames, legalOnes, wanted, v.want, v.s.capture.legalFrames(v.number), result.Refused, counts)
	}
	if mayStayInKernel && wanted != illegal {
		v.s.row.note("%d of %d frames did not get past the kernel (%d refused as descriptors)", illegal-wanted, illegal, result.Refused)
	}
	drain.do(v.s, by.agentProcess, endpointArg{by.Endpoint})
}

// isTransmitDrop reports whether a counter is of frames of endpoints that were
// dropped.
func isTransmitDrop(name string) bool {
	return strings.HasPrefix(name, "tx_") && name != "tx_uplink" && name != "tx_local" && name != "tx_host"
}
