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
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// curl runs curl without a progress meter; it must succeed.
func (s *server) curl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.on(t, "curl", append([]string{"--silent", "--show-error", "--max-time", "30"}, args...)...)
	if err != nil {
		t.Fatalf("curl: %v", err)
	}
	return out
}

func TestCurl(t *testing.T) {
	unetd.Tool(t, "curl")
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}), unetd.Everything)

	t.Run("get", func(t *testing.T) {
		if out := s.curl(t, s.url+"/"); !strings.Contains(out, "This is unet's TCP: ESTABLISHED") {
			t.Errorf("/ is %q", out)
		}
		if out := s.curl(t, "--write-out", "%{http_code}", s.url+"/nothing"); !strings.HasSuffix(out, "404") {
			t.Errorf("a missing page: %q", out)
		}
		if out := s.curl(t, "--head", s.url+"/bytes/1000000"); !strings.Contains(out, "Content-Length: 1000000") {
			t.Errorf("HEAD: %q", out)
		}
	})
	t.Run("keep-alive", func(t *testing.T) {
		args := []string{"--write-out", `%{num_connects} %{size_download}\n`}
		var want []string
		for i := range 10 {
			size := i * i * 1000
			args = append(args, "--output", os.DevNull, fmt.Sprint(s.url, "/bytes/", size))
			want = append(want, fmt.Sprintf("%d %d", max(0, 1-i), size))
		}
		if out := s.curl(t, args...); out != strings.Join(want, "\n") {
			t.Errorf("connections made and bytes got:\n%s\nwant\n%s", out, strings.Join(want, "\n"))
		}
	})
	t.Run("HTTP/1.0", func(t *testing.T) { // the end of the body is the end of the connection
		out := s.curl(t, "--http1.0", "--include", "--write-out", `connects %{num_connects}\n`, s.url+"/bytes/16", s.url+"/bytes/32")
		if strings.Count(out, "connects 1") != 2 || !strings.Contains(out, string(text(32))) {
			t.Errorf("two connections, each closed by the server:\n%s", out)
		}
	})
	t.Run("ranges", func(t *testing.T) { s.ranges(t) })
	t.Run("download", func(t *testing.T) { s.download(t, 50_000_000) })
	t.Run("upload", func(t *testing.T) { s.upload(t, 20_000_000) })
	t.Run("aborted", func(t *testing.T) { s.aborted(t) })
	s.stop(t) // which it could not do in time if one of the aborted downloads still ran
}

// TestCurlUntrusted: the same bytes for an endpoint that is not trusted, for which the
// peer's super-frames are cut on the way.
func TestCurlUntrusted(t *testing.T) {
	unetd.Tool(t, "curl")
	pair := netlab.RequirePair(t, netlab.Config{})
	s := startServer(t, pair, untrusted)
	s.download(t, 10_000_000)
	s.upload(t, 20_000_000)
	s.stop(t)
}

func (s *server) download(t *testing.T, size int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "download")
	s.curl(t, "--fail", "--output", file, fmt.Sprint(s.url, "/bytes/", size))
	got, err := os.ReadFile(file)
	testutil.Must(t, err)
	if len(got) != size || sha256.Sum256(got) != sha256.Sum256(text(size)) {
		t.Errorf("download of %d bytes: %d came, and they are not the right ones", size, len(got))
	}
}

// upload sends bytes that the server first has to accept: 100 Continue.
func (s *server) upload(t *testing.T, size int) {
	t.Helper()
	body := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(body)
	file := filepath.Join(t.TempDir(), "upload")
	testutil.Must(t, os.WriteFile(file, body, 0o600))
	out := s.curl(t, "--verbose", "--header", "Expect: 100-continue", "--data-binary", "@"+file, s.url+"/upload")
	if want := fmt.Sprintf("%d bytes sha256 %x", size, sha256.Sum256(body)); !strings.Contains(out, want) || !strings.Contains(out, "100 Continue") {
		t.Errorf("upload: want 100 Continue and %s:\n%s", want, out)
	}
}

func (s *server) ranges(t *testing.T) {
	whole := text(100_000)
	for spec, want := range map[string][]byte{
		"0-0":         whole[:1],
		"1000-1999":   whole[1000:2000],
		"99990-":      whole[99990:],
		"-12345":      whole[100_000-12345:],
		"5000-999999": whole[5000:],
	} {
		file := filepath.Join(t.TempDir(), "range")
		out := s.curl(t, "--range", spec, "--write-out", "%{http_code}", "--output", file, s.url+"/bytes/100000")
		if got, err := os.ReadFile(file); out != "206" || !bytes.Equal(got, want) || err != nil {
			t.Errorf("range %s: status %s, %d bytes of %d, %v", spec, out, len(got), len(want), err)
		}
	}
	if out := s.curl(t, "--range", "100000-", "--write-out", "%{http_code}", "--output", os.DevNull, s.url+"/bytes/100000"); out != "416" {
		t.Errorf("a range beyond the end: status %s, want 416", out)
	}
}

// aborted: clients that end in the middle of a download do not disturb the server.
func (s *server) aborted(t *testing.T) {
	endless := s.url + "/bytes/1000000000000"
	for range 3 {
		file := filepath.Join(t.TempDir(), "killed")
		p := unetd.Start(t, s.B, netlab.Bound(), unetd.Tool(t, "curl"), "--silent", "--output", file, endless)
		if !testutil.Until(func() bool { st, err := os.Stat(file); return err == nil && st.Size() > 1_000_000 }) {
			t.Fatal("the download does not begin")
		}
		p.Kill(t)
		s.curl(t, "--fail", "--output", os.DevNull, s.url+"/bytes/100000")
	}
	_, err := s.on(t, "curl", "--silent", "--max-time", "0.1", "--output", os.DevNull, endless)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 28 {
		t.Errorf("curl --max-time: %v, want status 28", err)
	}
	s.curl(t, "--fail", "--output", os.DevNull, s.url+"/bytes/100000")
}

var wrkRequests = regexp.MustCompile(`(\d+) requests in`)

// TestWrk: every request on 64 connections is answered, and the two sides have
// counted the same.
func TestWrk(t *testing.T) {
	const connections = 64
	unetd.Tool(t, "wrk")
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}), unetd.Everything)
	out, err := s.on(t, "wrk", "--threads", "2", "--connections", strconv.Itoa(connections), "--duration", "2s", "--latency", s.url+"/bytes/100")
	if err != nil {
		t.Fatalf("wrk: %v", err)
	}
	t.Log(out)
	for _, bad := range []string{"Socket errors", "Non-2xx"} {
		if strings.Contains(out, bad) {
			t.Errorf("wrk reports %s", bad)
		}
	}
	m := wrkRequests.FindStringSubmatch(out)
	if m == nil {
		t.Fatal("wrk does not say how many requests it made")
	}
	theirs, _ := strconv.Atoi(m[1])
	ours, _ := s.stop(t)
	// At the end wrk leaves at most one request of each connection unanswered.
	if theirs == 0 || ours < theirs || ours > theirs+connections {
		t.Errorf("wrk has %d answers, the server counted %d requests", theirs, ours)
	}
}

// TestShutdownFinishesDownload: after SIGTERM new connections are refused, and a download that
// has begun gets all its bytes.
func TestShutdownFinishesDownload(t *testing.T) {
	const size = 20_000_000 // more than the buffers of both sides hold
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}), unetd.Everything)
	dial := func(_ context.Context, network, address string) (net.Conn, error) { return s.B.Dial(network, address) }
	client := &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: unetd.TestTimeout}
	resp, err := client.Get(fmt.Sprint(s.url, "/bytes/", size))
	testutil.Must(t, err)
	defer resp.Body.Close()

	testutil.Must(t, s.Cmd.Process.Signal(syscall.SIGTERM))
	at := strings.TrimPrefix(s.url, "http://")
	if !testutil.Until(func() bool {
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
