//go:build linux

package http_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

func TestMain(m *testing.M) { unetd.Main(m) }

// untrusted is [unetd.Everything] without trust: no frame that is longer than one of
// the segment reaches the endpoint.
var untrusted = strings.Replace(unetd.Everything, "trusted: true", "trusted: false", 1)

// server is the example, run by user nobody on host A.
type server struct {
	*unetd.Process
	*netlab.Pair
	url string // without a path
}

func startServer(t *testing.T, pair *netlab.Pair, policy string) *server {
	t.Helper()
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy})
	at := fmt.Sprintf("%v:8080", pair.A.Addr.Addr())
	p := unetd.Start(t, pair.A, netlab.Nobody(), unetd.Command(t, "http"), "serve", "--unet-socket", d.Socket, "--listen", at)
	p.Await(t, "serving on")
	return &server{p, pair, "http://" + at}
}

// stop ends the server by SIGTERM, and returns what it has counted.
func (s *server) stop(t *testing.T) (requests, connections int) {
	t.Helper()
	return s.StopCounted(t, "requests")
}

// on runs a program on host B, whose sockets are the kernel's, and returns what
// it prints.
func (s *server) on(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	p := unetd.Start(t, s.B, netlab.Bound(), unetd.Tool(t, program), args...)
	err := p.End(t)
	return p.Output(), err
}

// text is the first n bytes of what the server has at /bytes: lines of 16 bytes, each with
// its offset.
func text(n int) []byte { return allText()[:n] }

var allText = sync.OnceValue(func() []byte {
	const size = 50_000_000
	b := make([]byte, 0, size)
	for len(b) < size {
		b = fmt.Appendf(b, "%015d\n", len(b))
	}
	return b
})
