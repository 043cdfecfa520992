//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// scraper makes a client of the metrics at a unix socket.
func scraper(t testing.TB, path string) (get func() []byte) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	t.Cleanup(client.CloseIdleConnections)
	return func() []byte {
		t.Helper()
		r, err := client.Get("http://unetd/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("status %d, %v: %s", r.StatusCode, err, body)
		}
		return body
	}
}

// The metrics of a running unetd are in Prometheus' format and have the values of its endpoint.
func TestMetrics(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	path := filepath.Join(t.TempDir(), "metrics.sock")
	d := s.serve(t, "--metrics", "unix:"+path, "--policy", policyFile(t, nobodys), "--socket-mode", "0666")
	a := startApp(t, s.socket)
	a.expect("open a frames=64 udp:10.0.0.1:7000", "[")
	text := scraper(t, path)()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if len(families) < 40 {
		t.Errorf("only %d families", len(families))
	}
	for _, want := range []string{
		"unet_endpoint_info{attach=\"port\",device=\"unet1\",endpoint=\"1\",interface=\"" + pair.A.Interface + "\",uid=\"65534\"} 1\n",
		"unet_endpoint_segment_bytes{endpoint=\"1\",interface=\"" + pair.A.Interface + "\"} 131072\n",
		"unet_leases_granted_total 1\n",
		"unet_user_tags{interface=\"" + pair.A.Interface + "\",uid=\"65534\"} 1\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}

	// The end of the endpoint is counted, by reason.
	s.run(t, "revoke", "1")
	testutil.Eventually(t, "the end is counted", func() bool {
		return strings.Contains(string(scraper(t, path)()), "unet_leases_ended_total{interface=\""+pair.A.Interface+"\",reason=\"operator\"} 1\n")
	})
	d.stop(syscall.SIGTERM)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// If the metrics address is in use, unetd ends with exit code 1 and one line, and attaches nothing.
func TestMetricsAddressInUse(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	path := filepath.Join(t.TempDir(), "metrics.sock")
	used, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	code, _, stderr := finish(t, pair.A, s.command("serve", "--metrics", "unix:"+path))
	if want := fmt.Sprintf("unetd: cannot serve metrics at unix:%s: bind: address already in use: choose another --metrics\n", path); code != exitFailure || stderr != want {
		t.Errorf("exit %d: %s", code, stderr)
	}
	expectDetached(t, pair.A)
}

// BenchmarkScrape scrapes a unetd with 256 endpoints, each with a full table of sockets.
func BenchmarkScrape(b *testing.B) {
	pair := netlab.RequirePair(b, netlab.Config{})
	s := newSite(b, pair.A)
	path := filepath.Join(b.TempDir(), "metrics.sock")
	s.serve(b, "--metrics", "unix:"+path)
	table, err := datapath.NewConnections()
	if err != nil {
		b.Fatal(err)
	}
	defer table.Close()
	for i := range table.Records() {
		table.Records()[i] = wire.Connection{LocalPort: 7000, RemotePort: 9, Protocol: wire.ProtocolTCP, State: 4, RTT: 1000, Sent: uint64(i)}
	}
	for range 256 {
		g, l, err := control.Open(b.Context(), s.socket, endpoint.Request{Geometry: smallGeometry(64), Connections: table.File()})
		if err != nil {
			b.Fatal(err)
		}
		defer g.Close()
		defer l.Close()
	}
	get := scraper(b, path)
	var times []time.Duration
	size := len(get())
	for b.Loop() {
		begin := time.Now()
		get()
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	b.ReportMetric(times[len(times)/2].Seconds()*1000, "ms-median")
	b.ReportMetric(float64(size), "bytes/scrape")
}
