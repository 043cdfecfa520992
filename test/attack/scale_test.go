//go:build linux

package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// openTaggedArg is how many endpoints to open, and their message tags.
type openTaggedArg struct {
	Socket string
	Count  int
	First  uint32
}

// openTagged opens endpoints that answer every message, and returns how long each took.
var openTagged = newCommand("openTagged", func(a *agent, arg openTaggedArg) (took []time.Duration, err error) {
	for i := range uint32(arg.Count) {
		ctx, cancel := timeout()
		begin := time.Now()
		grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{
			Geometry: smallGeometry,
			Tags:     []endpoint.Tag{endpoint.MessageTag(arg.First + i)},
		})
		cancel()
		if err != nil {
			return took, fmt.Errorf("endpoint %d: %w", i, err)
		}
		took = append(took, time.Since(begin))
		ep, err := datapath.Attach(grant, datapath.Config{Wait: endpoint.WaitBlock, Lease: lease})
		if err != nil {
			return took, err
		}
		done := make(chan error, 1)
		go func() { done <- answerMessages(ep) }()
		a.hold(answeringEndpoint{ep, lease, done})
	}
	return took, nil
})

// answeringEndpoint is an endpoint that answers until it is closed.
type answeringEndpoint struct {
	ep    *datapath.Endpoint
	lease endpoint.Lease
	done  chan error
}

func (i answeringEndpoint) Close() error {
	err := i.lease.Close()
	if answerErr := <-i.done; !errors.Is(answerErr, endpoint.ErrLeaseClosed) {
		err = errors.Join(err, answerErr)
	}
	return errors.Join(err, i.ep.Close())
}

// closeHeld closes all endpoints of an agent.
var closeHeld = newCommand("closeHeld", func(a *agent, _ nothing) (nothing, error) {
	var errs []error
	for _, c := range a.held {
		errs = append(errs, c.Close())
	}
	a.held = nil
	return nothing{}, errors.Join(errs...)
})

// TestManyEndpoints has processes of several users open endpoints, up to 256 at once.
// Each of them answers. Then all are closed, half of them because their processes are
// killed.
func TestManyEndpoints(t *testing.T) {
	const users, firstUser = 4, 65500
	each := lengthOf(64, 8, 4)
	row := results.add(t, fmt.Sprintf("%d endpoints at once", users*each), fmt.Sprintf("of %d users; each answers a message of host B; two users close theirs, two are killed", users))

	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: fmt.Sprintf(`
rules:
  - name: everybody
    users: ["*"]
    tags: ["msg:*"]
    endpoints: %d
    memory: 64MiB
`, each)})
	remote := unetd.Serve(t, pair.B, unetd.Options{})
	w := &world{pair: pair, unetd: d, capture: startCapture(t, pair.B, true), kernel: startKernelTraffic(t, pair)}
	ctx, cancel := context.WithTimeout(t.Context(), 4*unetd.TestTimeout)
	defer cancel()
	grant, lease, err := control.Open(ctx, remote.Socket, tagged(endpoint.MessageTag(peerTag)))
	if err != nil {
		t.Fatal(err)
	}
	ep, err := datapath.Attach(grant, datapath.Config{Wait: endpoint.WaitBlock, Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ep.Close(), lease.Close()); err != nil {
			t.Error(err)
		}
	})

	before, countsBefore := steadyResources(t, pair.A, d), w.snapshot(t)
	var processes []*agentProcess
	var took []time.Duration
	for u := range users {
		a := startAgent(t, pair.A, uint32(firstUser+u))
		took = append(took, openTagged.do(t, a, openTaggedArg{d.Socket, each, attackerTag + uint32(u*each)})...)
		processes = append(processes, a)
	}
	if n := len(list(t, d)); n != users*each {
		t.Errorf("unetd lists %d endpoints of %d", n, users*each)
	}
	for i := range uint32(users * each) {
		ch, err := ep.Channel(ctx, lease, hostA, attackerTag+i, peerTag)
		if err != nil {
			t.Fatal(err)
		}
		q := payloadFor("many", uint64(i))
		if err := errors.Join(ep.Write(&ch, q), ep.Flush()); err != nil {
			t.Fatal(err)
		}
		var m [1]datapath.Message
		for ep.Borrow(m[:]) == 0 {
			if err := ep.Wait(time.Now().Add(requestTimeout)); err != nil {
				t.Fatalf("endpoint %d does not answer: %v", i, err)
			}
		}
		if m[0].From().Tag != attackerTag+i || !bytes.Equal(m[0].Payload(), q) {
			t.Errorf("endpoint %d answered %d bytes as %v", i, len(m[0].Payload()), m[0].From())
		}
		ep.Return(&m[0])
	}
	slices.Sort(took)
	row.note("all answered; an open took %s in the median, %s at most", rounded(took[len(took)/2]), rounded(took[len(took)-1]))
	for u, a := range processes {
		if u%2 == 0 {
			closeHeld.do(t, a, nothing{})
			if err := a.leave(); err != nil {
				t.Errorf("user %d: %v", a.uid, err)
			}
		} else {
			a.kill()
		}
	}
	if !testutil.Until(func() bool { return len(list(t, d)) == 0 }) {
		t.Errorf("unetd still lists %d endpoints", len(list(t, d)))
	}
	wantReleased(t, row, before, pair.A, d)
	w.unharmed(t, row, countsBefore)
}
