package http_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// TestShutdown: after SIGTERM new connections are refused, and a download that
// has begun gets all its bytes.
func TestShutdown(t *testing.T) {
	const size = 20_000_000 // more than the buffers of both sides hold
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}), unetd.Everything)
	dial := func(_ context.Context, network, address string) (net.Conn, error) { return s.B.Dial(network, address) }
	client := &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: unetd.Patience}
	resp, err := client.Get(fmt.Sprint(s.url, "/bytes/", size))
	must(t, err)
	defer resp.Body.Close()

	must(t, s.Cmd.Process.Signal(syscall.SIGTERM))
	at := strings.TrimPrefix(s.url, "http://")
	if !unetd.Eventually(func() bool {
		c, err := s.B.Dial("tcp", at)
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}) {
		t.Error("connections are still accepted")
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, text(size)) {
		t.Errorf("download over a shutdown: %d bytes of %d, %v", len(got), size, err)
	}
	if err := s.End(t); err != nil {
		t.Errorf("server: %v", err)
	}
}
