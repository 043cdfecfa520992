package ports

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// manualLease is a lease whose requests the test receives and answers.
type manualLease struct {
	endpoint.Lease
	claims, unclaims chan request
	done             chan struct{}
}

type request struct {
	tag    endpoint.Tag
	answer chan error
}

func newManualLease() *manualLease {
	return &manualLease{claims: make(chan request), unclaims: make(chan request), done: make(chan struct{})}
}

func (l *manualLease) ask(ctx context.Context, to chan request, t endpoint.Tag) (endpoint.Tag, error) {
	r := request{t, make(chan error, 1)}
	select {
	case to <- r:
	case <-l.done:
		return t, endpoint.ErrLeaseClosed
	case <-ctx.Done():
		return t, context.Cause(ctx)
	}
	select {
	case err := <-r.answer:
		return t, err
	case <-l.done:
		return t, endpoint.ErrLeaseClosed
	case <-ctx.Done():
		return t, context.Cause(ctx)
	}
}

func (l *manualLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	return l.ask(ctx, l.claims, t)
}

func (l *manualLease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	_, err := l.ask(ctx, l.unclaims, t)
	return err
}

func (l *manualLease) Err() error { return nil }

func (l *manualLease) Done() <-chan struct{} { return l.done }

// newManual makes the ports of an address by a lease whose requests the test answers.
func newManual() (*Lease, *Local, *manualLease) {
	l := newManualLease()
	releasing := NewLease(l)
	return releasing, NewLocals(releasing, false, netip.MustParseAddr("10.0.0.1")).List()[0], l
}

func (l *Local) at(port uint16) netip.AddrPort { return netip.AddrPortFrom(l.Addr, port) }

// While unetd does not answer, the release of ports does not block, and one goroutine does it for all
// ports. A claim of a port whose Unclaim was not sent yet sends no request.
func TestUnclaimDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		releasing, at, l := newManual()
		ctx := t.Context()
		const sockets = 20
		var give []func()
		for i := range uint16(sockets) {
			var port uint16
			var unclaim func()
			done := make(chan struct{})
			go func() {
				defer close(done)
				var err error
				if port, unclaim, err = []*Ports{at.UDP, at.TCP}[i%2].Get(ctx, 7000+i, false); err != nil {
					t.Error(err)
				}
			}()
			(<-l.claims).answer <- nil
			<-done
			if port != 7000+i {
				t.Fatalf("port %d, want %d", port, 7000+i)
			}
			give = append(give, unclaim)
		}
		before, start := runtime.NumGoroutine(), time.Now()
		for _, f := range give {
			f()
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("the release of the ports took %v", d)
		}
		if n := runtime.NumGoroutine() - before; n > 1 {
			t.Errorf("%d goroutines more", n)
		}
		// A claim of the last one sends no request.
		port, release, err := at.TCP.Get(ctx, 7000+sockets-1, false)
		if err != nil || port != 7000+sockets-1 {
			t.Fatalf("port %d, %v", port, err)
		}
		// The Unclaim of the first port has been sent: a claim waits for its answer, until the context
		// of the claim ends.
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, _, err := at.UDP.Get(short, 7000, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a port that is being given back: %v", err)
		}
		got := make(chan error)
		go func() {
			_, _, err := at.UDP.Get(ctx, 7000, false)
			got <- err
		}()
		synctest.Wait()
		first := <-l.unclaims
		if first.tag.Port != 7000 {
			t.Errorf("given back first: %v", first.tag)
		}
		first.answer <- nil
		(<-l.claims).answer <- nil
		if err := <-got; err != nil {
			t.Error(err)
		}
		for i := range uint16(sockets - 2) { // all but the first and the one that is used again
			r := <-l.unclaims
			if r.tag.Port != 7001+i {
				t.Errorf("given back %v, want port %d", r.tag, 7001+i)
			}
			r.answer <- nil
		}
		// At the end of the lease its remaining tags are given back with it.
		release()
		close(l.done)
		synctest.Wait()
		if n := len(releasing.releasing); n != 0 {
			t.Errorf("%d tags are still to be given back", n)
		}
	})
}

// A claim that unetd refuses because the host has as many tags as it may have is repeated after an
// Unclaim in progress.
func TestBusyClaimWaitsForAnUnclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		releasing, at, l := newManual()
		releasing.Unclaim(t.Context(), endpoint.UDPTag(at.at(1)))
		got := make(chan error, 1)
		go func() {
			_, err := releasing.Claim(t.Context(), endpoint.UDPTag(at.at(2)))
			got <- err
		}()
		(<-l.claims).answer <- endpoint.ErrBusy
		synctest.Wait()
		if len(got) > 0 {
			t.Fatalf("the claim did not wait for the Unclaim: %v", <-got)
		}
		(<-l.unclaims).answer <- nil
		(<-l.claims).answer <- nil
		if err := <-got; err != nil {
			t.Error(err)
		}
		go func() {
			_, err := releasing.Claim(t.Context(), endpoint.UDPTag(at.at(3)))
			got <- err
		}()
		(<-l.claims).answer <- endpoint.ErrBusy
		if err := <-got; err != endpoint.ErrBusy {
			t.Errorf("with nothing to give back: %v", err)
		}
	})
}

// A listen whose claim gets no answer delays only listens on the same port, and ends with
// its context.
func TestListenWaitsOnlyForClaimsOfItsPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, at, l := newManual()
		type result struct {
			port uint16
			err  error
		}
		listen := func(ctx context.Context, port uint16) chan result {
			got := make(chan result, 1)
			go func() {
				port, _, err := at.TCP.Get(ctx, port, false)
				got <- result{port, err}
			}()
			synctest.Wait()
			return got
		}
		cancelled, cancel := context.WithCancel(t.Context())
		first := listen(cancelled, 80)
		unanswered := <-l.claims
		second, third := listen(t.Context(), 80), listen(t.Context(), 80)
		other := listen(t.Context(), 81)
		select {
		case r := <-l.claims:
			if r.tag.Port != 81 {
				t.Fatalf("claimed %v", r.tag)
			}
			r.answer <- nil
		case <-time.After(time.Hour):
			t.Fatal("the claim of another port waits")
		}
		if r := <-other; r.err != nil || r.port != 81 {
			t.Errorf("port 81: %+v", r)
		}
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if r := <-listen(short, 80); !errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("listen with a context that has ended: %v", r.err)
		}
		cancel()
		if r := <-first; !errors.Is(r.err, context.Canceled) {
			t.Errorf("listen with a context that was cancelled: %v", r.err)
		}
		unanswered.answer <- nil // after the end of its context
		(<-l.claims).answer <- nil
		a, b := <-second, <-third
		if want := (result{80, nil}); a != want || b != want || at.TCP.blocks[64].users[80-64] != 2 {
			t.Errorf("%+v, %+v", a, b)
		}
		close(l.done)
	})
}

// An Unclaim that unetd refuses because it is busy is repeated, until the lease ends.
func TestBusyUnclaimIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		releasing, at, l := newManual()
		tag := endpoint.UDPTag(at.at(7000))
		left := func() int {
			synctest.Wait()
			releasing.mu.Lock()
			defer releasing.mu.Unlock()
			return len(releasing.releasing)
		}
		releasing.Unclaim(t.Context(), tag)
		for range 12 {
			(<-l.unclaims).answer <- endpoint.ErrBusy
		}
		if r := <-l.unclaims; r.tag != tag {
			t.Errorf("given back %v, want %v", r.tag, tag)
		} else {
			r.answer <- nil
		}
		if n := left(); n != 0 {
			t.Errorf("%d tags are still to be given back", n)
		}
		releasing.Unclaim(t.Context(), tag)
		(<-l.unclaims).answer <- endpoint.ErrBusy
		close(l.done)
		if n := left(); n != 0 {
			t.Errorf("at the end of the lease: %d tags are still to be given back", n)
		}
	})
}
