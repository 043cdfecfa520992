//go:build linux

package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/mux"
)

// Some errors with which the next unetd answers present end the lease. After the others the endpoint is presented
// again.
func TestErrorsOfPresent(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
	}{
		{"unknown", endpoint.ErrNotPresentable}, {"another's", os.ErrPermission}, {"leased", endpoint.ErrLeased}, {"over", endpoint.ErrLeaseClosed},
		{"unsupported", errors.ErrUnsupported}, {"protocol", protocol.ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			DescriptorLeaks(t)
			p := newFakeProvider(t)
			d := newDaemon(t, p)
			g, l := mustOpen(t, d.socket, endpoint.Request{})
			d.kill()
			p.hook(hooks{present: func(context.Context, mux.Owner, *os.File) error { return fmt.Errorf("no: %w", c.err) }})
			d.start()
			_, err := l.Claim(context.Background(), endpoint.MessageTag(1))
			if !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, c.err) || !strings.Contains(err.Error(), "does not take the endpoint back: no: ") {
				t.Errorf("Claim: %v", err)
			}
			Await(t, "Done", l.Done())
			if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, c.err) {
				t.Errorf("Err: %v", err)
			}
			g.Close()
			d.stop()
			p.awaitGrantsClosed() // also without Close of the lease
		})
	}
	for _, c := range []struct {
		name string
		err  error
	}{{"busy", protocol.Busy("too many")}, {"internal", errors.New("cause")}} {
		t.Run(c.name, func(t *testing.T) {
			p := newFakeProvider(t)
			d := newDaemon(t, p)
			_, l := mustOpen(t, d.socket, endpoint.Request{})
			d.kill()
			var mu sync.Mutex
			tries := 0
			p.hook(hooks{present: func(context.Context, mux.Owner, *os.File) error {
				mu.Lock()
				defer mu.Unlock()
				if tries++; tries < 3 {
					return c.err
				}
				return nil
			}})
			d.start()
			if _, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil {
				t.Error(err)
			}
		})
	}
}

// If unetd refuses the connection because of its limit, the endpoint is presented again later.
func TestPresentAfterLimitOfConnections(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	_, l := mustOpen(t, d.socket, endpoint.Request{})
	d.kill()
	d.limits = Limits{Connections: 1}
	d.socket += "2"
	d.start()
	holder := connect(t, d.socket)
	holder.open()
	if err := os.Symlink(d.socket, strings.TrimSuffix(d.socket, "2")); err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Resolve while all connections are in use: %v", err)
		}
	}()
	Await(t, "the end of Resolve", refused)
	holder.conn.Close()
	if _, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil {
		t.Error(err)
	}
}
