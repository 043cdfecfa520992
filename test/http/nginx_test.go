//go:build linux

package http_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// nginxConf is of one process, which a signal ends as a whole. It keeps to the
// folder that it is given as its prefix.
const nginxConf = `
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events { worker_connections 256; }
http {
	log_format test "$request_method $uri $status $body_bytes_sent $connection";
	access_log access.log test;
	client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
	keepalive_requests 1000000;
	sendfile on;
	server {
		listen 10.0.0.2:80;
		root files;
	}
}
`

// nginx serves files on host B's kernel.
type nginx struct {
	*unetd.Process
	*netlab.Pair
	socket string // of unetd on host A
	prefix string
	url    string
}

func startNginx(t *testing.T) *nginx {
	t.Helper()
	unetd.Tool(t, "nginx")
	n := &nginx{Pair: netlab.RequirePair(t, netlab.Config{}), prefix: t.TempDir(), url: "http://10.0.0.2"}
	n.socket = unetd.Serve(t, n.A, unetd.Options{Policy: untrusted}).Socket
	testutil.Must(t, os.Mkdir(filepath.Join(n.prefix, "files"), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(n.prefix, "nginx.conf"), []byte(nginxConf), 0o644))
	n.start(t)
	return n
}

// start starts nginx, and returns when it listens.
func (n *nginx) start(t *testing.T) {
	t.Helper()
	n.Process = unetd.Start(t, n.B, netlab.Bound(), unetd.Tool(t, "nginx"), "-p", n.prefix, "-c", "nginx.conf")
	if !testutil.Until(func() bool {
		c, err := n.B.Dial("tcp", "10.0.0.2:80")
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		t.Fatal("nginx does not listen")
	}
}

// file makes a file that nginx serves, of random bytes.
func (n *nginx) file(t *testing.T, name string, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{2}).Read(b)
	testutil.Must(t, os.WriteFile(filepath.Join(n.prefix, "files", name), b, 0o644))
	return b
}

// client is a client on unet, and how many connections it has made.
func (n *nginx) client(t *testing.T, maxConns int) (c *http.Client, dials *atomic.Int32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), unetd.TestTimeout)
	defer cancel()
	h, err := unet.Open(ctx, unet.Config{Socket: n.socket})
	testutil.Must(t, err)
	dials = new(atomic.Int32)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return h.DialContext(ctx, network, address)
		},
		MaxConnsPerHost:       maxConns,
		MaxIdleConnsPerHost:   maxConns,
		ExpectContinueTimeout: unetd.TestTimeout,
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := h.Close(); err != nil {
			t.Errorf("close of the host: %v", err)
		}
	})
	return &http.Client{Transport: transport, Timeout: unetd.TestTimeout}, dials
}

// fetch gets a file as a whole.
func (n *nginx) fetch(c *http.Client, name string) ([]byte, error) {
	resp, err := c.Get(n.url + "/" + name)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return b, err
}

// log is nginx's own log of the requests that it has answered: method,
// path, status, bytes, number of the connection.
func (n *nginx) log(t *testing.T) (lines [][]string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.prefix, "access.log"))
	testutil.Must(t, err)
	for line := range strings.Lines(string(b)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// TestParallelRequestsToNginx: many requests at once over few connections, which are kept.
func TestParallelRequestsToNginx(t *testing.T) {
	const workers, requests, conns = 32, 50, 4
	n := startNginx(t)
	sizes := []int{0, 1, 1448, 1449, 20_000, 300_000}
	var files [][]byte
	for i, size := range sizes {
		files = append(files, n.file(t, fmt.Sprint("file", i), size))
	}
	client, dials := n.client(t, conns)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := range requests {
				i := (w + r) % len(files)
				if got, err := n.fetch(client, fmt.Sprint("file", i)); err != nil || !bytes.Equal(got, files[i]) {
					t.Errorf("worker %d request %d: %d bytes of %d, %v", w, r, len(got), len(files[i]), err)
					return
				}
			}
		})
	}
	wg.Wait()
	if d := dials.Load(); d > conns {
		t.Errorf("%d connections made, want at most %d", d, conns)
	}
	n.Stop(t) // now all of its log is written
	seen, good := map[string]bool{}, 0
	for _, l := range n.log(t) {
		if l[0] == "GET" && l[2] == "200" {
			good++
		}
		seen[l[4]] = true
	}
	if good != workers*requests || len(seen) > conns {
		t.Errorf("nginx has answered %d requests over %d connections, want %d over at most %d", good, len(seen), workers*requests, conns)
	}
}

// TestExampleAsClientOfNginx: user nobody runs the example as a client.
func TestExampleAsClientOfNginx(t *testing.T) {
	n := startNginx(t)
	body := n.file(t, "file", 20_000_000)
	get := func(args ...string) string {
		t.Helper()
		args = append([]string{"get", "--unet-socket", n.socket}, args...)
		p := unetd.Start(t, n.A, netlab.Nobody(), unetd.Command(t, "http"), args...)
		if err := p.End(t); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return p.Output()
	}
	if out, want := get("-o", os.DevNull, n.url+"/file"), fmt.Sprintf("sha256 %x", sha256.Sum256(body)); !strings.Contains(out, "200 OK, 20000000 bytes") || !strings.Contains(out, want) {
		t.Errorf("one request: %s", out)
	}
	n.file(t, "small", 100)
	if out := get("-n", "1000", "-c", "4", n.url+"/small"); !strings.Contains(out, "1000 good, 0 failed, 100000 bytes") || !strings.Contains(out, "over 4 connections") {
		t.Errorf("many requests: %s", out)
	}
}

// TestRequestsThatNginxRejects: a request that nginx rejects is an answer, not an error.
func TestRequestsThatNginxRejects(t *testing.T) {
	n := startNginx(t)
	n.file(t, "file", 100)
	client, _ := n.client(t, 1)
	for _, c := range []struct {
		what   string
		size   int
		expect bool
		want   int
	}{
		{"a body for a file", 100, false, http.StatusMethodNotAllowed},
		{"a body that is too large", 20_000_000, true, http.StatusRequestEntityTooLarge},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+"/file", bytes.NewReader(make([]byte, c.size)))
		testutil.Must(t, err)
		if c.expect {
			req.Header.Set("Expect", "100-continue")
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != c.want {
			t.Errorf("%s: %s, %v, want status %d", c.what, resp.Status, err, c.want)
		}
		resp.Body.Close()
	}
	if _, err := n.fetch(client, "nothing"); err == nil || err.Error() != "404 Not Found" {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := n.fetch(client, "file"); err != nil {
		t.Errorf("a good request after all that: %v", err)
	}
}

// TestRequestsToKilledNginx: requests to a killed server return errors that callers can test for. A
// restarted server is used again.
func TestRequestsToKilledNginx(t *testing.T) {
	const size = 100_000_000 // more than the buffers of both sides hold
	n := startNginx(t)
	small := n.file(t, "small", 20_000)
	large := n.file(t, "large", size)
	client, dials := n.client(t, 2)

	resp, err := client.Get(n.url + "/large")
	testutil.Must(t, err)
	defer resp.Body.Close()
	begin := make([]byte, 10_000)
	if _, err := io.ReadFull(resp.Body, begin); err != nil {
		t.Fatal(err)
	}
	n.Kill(t)
	rest, err := io.ReadAll(resp.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("download from a killed server: %v, want unexpected EOF or ECONNRESET", err)
	}
	if got := append(begin, rest...); len(got) >= size || !bytes.Equal(got, large[:len(got)]) {
		t.Errorf("download from a killed server: %d bytes, or wrong ones", len(got))
	}
	if _, err := n.fetch(client, "small"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("request to a port without a listener: %v, want ECONNREFUSED", err)
	}

	n.start(t)
	for restart := range 3 {
		if got, err := n.fetch(client, "small"); err != nil || !bytes.Equal(got, small) {
			t.Errorf("restart %d: %d bytes, %v", restart, len(got), err)
		}
		before := dials.Load()
		if _, err := n.fetch(client, "small"); err != nil || dials.Load() != before {
			t.Errorf("restart %d: the connection is not kept: %v", restart, err)
		}
		n.Kill(t) // the connection that the client keeps ends with it
		n.start(t)
	}
}

// TestDownloadsOnOneConnection: a large file, byte for byte, on a connection that other
// requests have used and will use.
func TestDownloadsOnOneConnection(t *testing.T) {
	n := startNginx(t)
	small, large := n.file(t, "small", 100), n.file(t, "large", 20_000_000)
	client, dials := n.client(t, 1)
	for i := range 5 {
		for name, want := range map[string][]byte{"small": small, "large": large} {
			if got, err := n.fetch(client, name); err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
				t.Errorf("round %d, %s: %d bytes, %v", i, name, len(got), err)
			}
		}
	}
	if d := dials.Load(); d != 1 {
		t.Errorf("%d connections made, want 1", d)
	}
}
