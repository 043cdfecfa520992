//go:build linux

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/share"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// fakeSource is a source with one interface, eth0, and one, eth1, that is gone.
type fakeSource struct {
	err     error
	entered chan struct{} // if it is not nil, Report sends on it, and returns after a receive from leave
	leave   chan struct{}
}

func (f *fakeSource) Muxes() ([]Mux, []string) { return []Mux{f}, []string{"eth1"} }

func (f *fakeSource) Counters() ([]endpoint.Counter, error) {
	return []endpoint.Counter{
		{Name: "rx_pass", Value: 7}, {Name: "rx_port", Value: 100}, {Name: "tx_forged_tag", Value: 3},
		{Name: "deliver_socket", Value: 94}, {Name: "lost_deliver_backlog", Value: 5}, {Name: "lost_deliver_backlog.12", Value: 5},
	}, f.err
}

func (f *fakeSource) Report() (mux.Report, error) {
	if f.entered != nil {
		f.entered <- struct{}{}
		<-f.leave
	}
	return mux.Report{
		Uplink: endpoint.Uplink{Interface: "eth0", Mode: "tcx", Up: true},
		MTU:    1500,
		Link:   mux.Traffic{RxPackets: 1000, RxBytes: 64000, RxDropped: 2, TxPackets: 10, TxBytes: 640},
		Endpoints: []mux.EndpointReport{
			{Info: endpoint.Info{ID: 12, UID: 1001, Attach: endpoint.AttachPort, Device: "unet12", SegmentBytes: 8 << 20, Leased: true}, Tags: 2, Port: mux.Traffic{RxPackets: 30, RxBytes: 1800},
				Published: &wire.EndpointRecord{RxRingFull: 21}, Sockets: mux.SocketTotals{UDP: 1, Connections: 2, Segments: 30, Again: 3, RTT: 2500 * time.Nanosecond}},
			{Info: endpoint.Info{ID: 13, UID: 0, Attach: endpoint.AttachQueue, Device: "eth0", SegmentBytes: 4 << 20}},
		},
		Users:  map[uint32]mux.Usage{1001: {Endpoints: 1, Memory: 8 << 20, Tags: 65}},
		Limits: mux.Limits{Endpoints: 100},
		Ended:  map[string]uint64{"closed": 4, "misuse": 1},
	}, f.err
}

func (f *fakeSource) Leases() Leases {
	return Leases{Granted: 9, Presented: 1, Refused: map[string]uint64{"busy": 2}, Draining: true}
}

var process = Process{Version: "v1.2.3", LogDropped: func() uint64 { return 6 }, LogSuppressed: func() uint64 { return 7 }, Faults: func() uint64 { return 8 }}

// Prometheus' own checker accepts the names, units and descriptions, and the values are those of the source.
func TestCollector(t *testing.T) {
	c := newCollector(&fakeSource{}, process)
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	for want, names := range map[string][]string{
		`
# HELP unet_unaccounted_frames Frames that have disappeared, or are on their way at the moment; negative: frames in ports that are not of the mux. If it stays other than 0, counters do not add up.
# TYPE unet_unaccounted_frames gauge
unet_unaccounted_frames{interface="eth0"} 1
`: {"unet_unaccounted_frames"},
		`
# HELP unet_uplink_up 1 if the link of the interface is up; 0 also while the interface is gone.
# TYPE unet_uplink_up gauge
unet_uplink_up{interface="eth0"} 1
unet_uplink_up{interface="eth1"} 0
`: {"unet_uplink_up"},
		`
# HELP unet_frames_total Frames by the counter that unetd counters shows, its stage (rx: received, tx: sent by endpoints, mux: sent by unetd for endpoints, deliver: at the end of a port, lost: by the kernel), and their outcome.
# TYPE unet_frames_total counter
unet_frames_total{counter="deliver_socket",interface="eth0",outcome="redirected",stage="deliver"} 94
unet_frames_total{counter="lost_deliver_backlog",interface="eth0",outcome="lost",stage="lost"} 5
unet_frames_total{counter="rx_pass",interface="eth0",outcome="passed",stage="rx"} 7
unet_frames_total{counter="rx_port",interface="eth0",outcome="redirected",stage="rx"} 100
unet_frames_total{counter="tx_forged_tag",interface="eth0",outcome="dropped",stage="tx"} 3
`: {"unet_frames_total"},
		`
# HELP unet_endpoint_backlog_lost_frames_total Frames to an endpoint that a full backlog of a processor has dropped; a part of lost_deliver_backlog.
# TYPE unet_endpoint_backlog_lost_frames_total counter
unet_endpoint_backlog_lost_frames_total{endpoint="12",interface="eth0"} 5
unet_endpoint_backlog_lost_frames_total{endpoint="13",interface="eth0"} 0
# HELP unet_endpoint_sent_frames_total Frames that have come out of an endpoint's port, also those that were then dropped.
# TYPE unet_endpoint_sent_frames_total counter
unet_endpoint_sent_frames_total{endpoint="12",interface="eth0"} 30
# HELP unet_endpoint_sockets Sockets that the process of an endpoint publishes (udp, tcp_listening, tcp), of the first 255.
# TYPE unet_endpoint_sockets gauge
unet_endpoint_sockets{endpoint="12",interface="eth0",kind="tcp"} 2
unet_endpoint_sockets{endpoint="12",interface="eth0",kind="tcp_listening"} 0
unet_endpoint_sockets{endpoint="12",interface="eth0",kind="udp"} 1
# HELP unet_endpoint_tcp_retransmitted_segments Of these, segments sent again.
# TYPE unet_endpoint_tcp_retransmitted_segments gauge
unet_endpoint_tcp_retransmitted_segments{endpoint="12",interface="eth0"} 3
# HELP unet_endpoint_tcp_rtt_mean_seconds Mean of the smoothed round-trip times of the present TCP connections of an endpoint.
# TYPE unet_endpoint_tcp_rtt_mean_seconds gauge
unet_endpoint_tcp_rtt_mean_seconds{endpoint="12",interface="eth0"} 2.5e-06
# HELP unet_endpoints Endpoints, by attachment and state (leased, or waiting to be presented after a restart of unetd).
# TYPE unet_endpoints gauge
unet_endpoints{attach="port",interface="eth0",state="leased"} 1
unet_endpoints{attach="port",interface="eth0",state="waiting"} 0
unet_endpoints{attach="queue",interface="eth0",state="leased"} 0
unet_endpoints{attach="queue",interface="eth0",state="waiting"} 1
# HELP unet_leases_refused_total Requests to open or present an endpoint that have failed, by the code of the error.
# TYPE unet_leases_refused_total counter
unet_leases_refused_total{reason="busy"} 2
# HELP unet_user_tags Tags of a user; a block of ports counts as 64.
# TYPE unet_user_tags gauge
unet_user_tags{interface="eth0",uid="1001"} 65
`: {"unet_endpoint_backlog_lost_frames_total", "unet_endpoint_sent_frames_total", "unet_endpoint_sockets", "unet_endpoint_tcp_retransmitted_segments", "unet_endpoint_tcp_rtt_mean_seconds", "unet_endpoints", "unet_leases_refused_total", "unet_user_tags"},
	} {
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
			t.Error(err)
		}
	}
}

// serve serves a source at an address, and returns a client.
func serve(t *testing.T, addr string, source Source) (get func() (int, string)) {
	t.Helper()
	ln, err := Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	stop := Serve(ln, source, process)
	t.Cleanup(stop)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, ln.Addr().Network(), ln.Addr().String())
	}}}
	t.Cleanup(client.CloseIdleConnections)
	return func() (int, string) {
		r, err := client.Get("http://unetd/metrics")
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		return r.StatusCode, string(body)
	}
}

// Metrics are served over TCP and on a unix socket. An error of the source is an error of the scrape.
func TestServe(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "unix:" + filepath.Join(t.TempDir(), "metrics.sock")} {
		if strings.HasPrefix(addr, "[") {
			if ln, err := net.Listen("tcp", addr); err != nil {
				continue // no IPv6 here
			} else {
				ln.Close()
			}
		}
		code, text := serve(t, addr, &fakeSource{})()
		for _, want := range []string{"\nunet_build_info{goversion=\"go", "\nunet_draining 1\n", "\ngo_goroutines ", "\nprocess_open_fds "} {
			if code != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s: status %d, no %q in %s", addr, code, want, text)
			}
		}
	}
	if code, text := serve(t, "127.0.0.1:0", &fakeSource{err: errors.New("broken")})(); code != http.StatusInternalServerError || !strings.Contains(text, "broken") {
		t.Errorf("status %d: %s", code, text)
	}
}

// While peerScrapes scrapes of a peer are in progress, another one of it waits, and one of another peer does not.
func TestScrapesAtOnce(t *testing.T) {
	if _, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", "127.0.0.1:1"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Skipf("no second address of lo: %v", err)
	}
	f := &fakeSource{entered: make(chan struct{}), leave: make(chan struct{})}
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(Serve(ln, f, process))
	const scrapes = 3 * peerScrapes
	codes := make(chan int, scrapes+1)
	get := func(from net.IP) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext}}
		r, err := client.Get("http://" + ln.Addr().String() + "/metrics")
		if err != nil {
			codes <- 0
			return
		}
		r.Body.Close()
		codes <- r.StatusCode
	}
	for range scrapes {
		go get(net.IPv4(127, 0, 0, 1))
	}
	for range peerScrapes {
		<-f.entered
	}
	go get(net.IPv4(127, 0, 0, 2))
	<-f.entered // the other's: those of the first peer cannot begin before leave
	if len(codes) != 0 {
		t.Error("an answer before the end of a scrape")
	}
	go func() {
		for range scrapes - peerScrapes {
			<-f.entered
		}
	}()
	close(f.leave)
	for range scrapes + 1 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("status %d", code)
		}
	}
}

// However many connections a peer holds, idle or with a request half sent or an answer unread, others are answered,
// and the peer itself is.
func TestIdleScrapers(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "metrics.sock")} {
		ln, err := Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(Serve(ln, &fakeSource{}, process))
		for i := range 3 * maxConnections {
			c, err := net.Dial(ln.Addr().Network(), ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			_, _ = c.Write([]byte([]string{"", "G", "GET /metrics HTTP/1.1\r\nHost: unetd\r\n\r\n"}[i%3])) // fails if it has been closed already
		}
		for range 10 {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, ln.Addr().Network(), ln.Addr().String())
			}}}
			r, err := client.Get("http://unetd/metrics")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != http.StatusOK {
				t.Errorf("%s: status %d, %v", addr, r.StatusCode, err)
			}
			r.Body.Close()
		}
	}
}

// A peer loses the connection that has been idle for longest.
func TestIdlestConnectionGoes(t *testing.T) {
	peer, begin := share.User{UID: 7}, time.Now()
	p := newPeers(nil)
	for i, busy := range []bool{true, false, false, true} {
		p.conns[&peerConn{peer: peer, since: begin.Add(time.Duration(3-i) * time.Second), busy: busy}] = struct{}{}
	}
	p.conns[&peerConn{peer: share.User{UID: 8}, since: begin.Add(-time.Hour)}] = struct{}{}
	for _, want := range []time.Duration{1, 2, 0, 3} {
		c := p.idlest(peer)
		if got := c.since.Sub(begin); got != want*time.Second {
			t.Errorf("the one of %v, want %ds", got, want)
		}
		delete(p.conns, c)
	}
	if p.idlest(peer) != nil {
		t.Error("another's connection")
	}
}

// The errors of Listen are one line with the address. A file at the path stays; the socket of a process that has ended
// is replaced.
func TestListen(t *testing.T) {
	folder := t.TempDir()
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	path := func(name string) string { return filepath.Join(folder, name) }
	socket, err := net.Listen("unix", path("used"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := os.WriteFile(path("file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		used.Addr().String():    "bind: address already in use",
		"unix:" + path("used"):  "bind: address already in use",
		"unix:" + path("file"):  "bind: address already in use",
		"unix:" + path("no/no"): "bind: no such file or directory",
		"9810":                  "want HOST:PORT or unix:PATH",
		"127.0.0.1:none":        "unknown port",
	} {
		ln, err := Listen(addr)
		if err == nil {
			ln.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if text, err := os.ReadFile(path("file")); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	// The socket of a process that has died.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path("stale"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	ln, err := Listen("unix:" + path("stale"))
	if err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path("stale")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// docs/operations.md lists all metrics, and no others.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cell, ok := strings.CutPrefix(line, "| `unet_"); ok {
			name, _, _ := strings.Cut("unet_"+cell, "`")
			documented[name] = true
		}
	}
	for _, d := range all {
		// Desc{fqName: "NAME", ...
		name := strings.Split(fmt.Sprint(d), `"`)[1]
		if !documented[name] {
			t.Errorf("docs/operations.md has no row for %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/operations.md describes %s, which does not exist", name)
	}
}
