//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
)

// fullPipe is a pipe whose buffer is full.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	fd := fds[1]
	err := unix.SetNonblock(fd, true)
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(fds[0]), "log"), os.NewFile(uintptr(fd), "log")
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// serveWithStderr starts unetd, which logs to stderr at level debug.
func (s *site) serveWithStderr(t *testing.T, stderr *os.File, args ...string) *exec.Cmd {
	t.Helper()
	cmd := s.command("serve", append([]string{"--log-level", "debug", "--ready-fd", "3"}, args...)...)
	ready, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	cmd.ExtraFiles, cmd.Stderr = []*os.File{w}, stderr
	if err := s.host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	killAtEnd(t, cmd)
	w.Close()
	if err := ready.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	if line, err := io.ReadAll(ready); string(line) != "ready\n" {
		t.Fatalf("ready line %q, %v", line, err)
	}
	return cmd
}

// openAndClose opens and closes leases, several at a time.
func (s *site) openAndClose(t *testing.T, leases int) {
	t.Helper()
	const atOnce = 8
	ctx, cancel := context.WithTimeout(context.Background(), 4*testTimeout)
	defer cancel()
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for range leases / atOnce {
				g, l, err := control.Open(ctx, s.socket, endpoint.Request{Geometry: smallGeometry(64)})
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(l.Close(), g.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// unetd works while the pipe of its log is not read, and reports how many lines were
// dropped when it is read again.
func TestUnetdWorksWhileLogIsNotRead(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	r, w := fullPipe(t)
	file := policyFile(t, "rules: [{name: roots, users: [root], tags: ['msg:*'], endpoints: unlimited, memory: unlimited}]")
	cmd := s.serveWithStderr(t, w, "--policy", file)
	// Each mistake of a policy is a line of the log. All lines together are longer than maxUnwritten.
	const mistakes = maxUnwritten / 64
	writePolicy(t, file, "rules: ["+strings.Repeat("{name: a, colour: red}, ", mistakes)+"]")
	if _, err := (control.Operator{Socket: s.socket}).Reload(t.Context()); err == nil {
		t.Fatal("a policy with mistakes was read")
	}
	s.openAndClose(t, 16)
	if t.Failed() {
		return
	}

	reported := make(chan bool)
	go func() {
		defer close(reported)
		found := false
		for lines := bufio.NewReader(r); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if !found && strings.Contains(line, `msg="lines of this log were dropped`) {
				found = true
				reported <- true
			}
		}
	}()
	select {
	case <-reported:
	case <-time.After(testTimeout):
		t.Fatal("the log does not report dropped lines")
	}
	terminate(t, cmd)
}

// terminate sends SIGTERM to a unetd and expects exit code 0.
func terminate(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(testTimeout, func() { cmd.Process.Kill() })
	defer kill.Stop()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// unetd ends after SIGTERM while the pipe of its log is full.
func TestStopWhileLogIsNotRead(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	_, w := fullPipe(t)
	cmd := s.serveWithStderr(t, w)
	terminate(t, cmd)
	expectDetached(t, pair.A)
}

// unetd works and ends with exit code 0 after the reader of its log has ended.
func TestUnetdWorksWithoutReaderOfLog(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := s.serveWithStderr(t, w)
	r.Close()
	s.openAndClose(t, 16)
	terminate(t, cmd)
	expectDetached(t, pair.A)
}

// Each lease that is granted, refused or ended is a log record with its user and process. The records of one user
// have a limit, and those beyond it are counted.
func TestLeasesAreLogged(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	path := filepath.Join(t.TempDir(), "metrics.sock")
	d := s.serve(t, "--log-format", "json", "--metrics", "unix:"+path)
	s.openAndClose(t, 8)
	if _, _, err := control.Open(t.Context(), s.socket, endpoint.Request{Geometry: endpoint.Geometry{FrameSize: 7}}); err == nil {
		t.Error("no error")
	}
	s.openAndClose(t, 160)
	if out := s.run(t, "counters"); !strings.Contains(out, "168  lease_granted") {
		t.Errorf("%s", out)
	}
	metrics := string(scraper(t, path)())
	d.stop(syscall.SIGTERM)
	records := map[string]int{}
	for _, line := range d.last {
		var r struct {
			Msg, Level, Attach, Mode, Interface, Reason, Code, Error string
			Endpoint, PID                                            int
			UID                                                      *int
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		records[r.Msg]++
		complete := r.UID != nil && *r.UID == 0 && r.PID == os.Getpid() && r.Level == "INFO"
		switch r.Msg {
		case "endpoint granted":
			complete = complete && r.Endpoint > 0 && r.Attach == "port" && r.Mode == "tcx" && r.Interface == pair.A.Interface
		case "endpoint ended":
			complete = complete && r.Endpoint > 0 && (r.Reason == "its application has closed it, or has ended" || r.Reason == "unetd was stopped")
		case "endpoint refused":
			complete = complete && r.Code == "geometry" && r.Error != ""
		default:
			continue
		}
		if !complete {
			t.Errorf("%s", line)
		}
	}
	all := records["endpoint granted"] + records["endpoint ended"] + records["endpoint refused"]
	if records["endpoint granted"] < 8 || records["endpoint ended"] < 8 || records["endpoint refused"] != 1 || all < 64 { // of 168+168+1
		t.Errorf("%v", records)
	}
	if !strings.Contains(metrics, "\nunet_log_suppressed_records_total ") || strings.Contains(metrics, "\nunet_log_suppressed_records_total 0\n") {
		t.Errorf("%s", metrics)
	}
}

// Values of the log are strings in JSON too: the policy is its path.
func TestJSONLog(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--policy", file, "--log-format", "json")
	d.awaitLine(`"msg":"policy","policy":"` + file + `","rules":2`)
	d.awaitLine(`"msg":"mux attached"`, `"mode":"tcx"`)
	d.signal(syscall.SIGHUP)
	d.awaitLine(`"msg":"policy reloaded","policy":"` + file + `","rules":2`)
	d.stop(syscall.SIGTERM)
}

// Each line is written whole, or is counted as dropped, also if there is no room for
// another line when the number of dropped lines is reported.
func TestLogWriter(t *testing.T) {
	r, w := io.Pipe() // has no buffer
	log := newLogWriter(w)
	var reported []uint64
	const report = "report\n"
	log.report = func(n uint64) []byte { reported = append(reported, n); return []byte(report) }
	line := strings.Repeat("x", 1023) + "\n"
	const lines = 2*maxUnwritten/1024 + 100
	for range lines {
		if n, err := log.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	log.flush() // returns after flushWithin
	var got bytes.Buffer
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		io.Copy(&got, r)
	}()
	log.flush()
	w.Close()
	<-copied
	whole, reports := strings.Count(got.String(), line), strings.Count(got.String(), report)
	if reports != 1 || len(reported) != 1 || got.Len() != whole*len(line)+len(report) {
		t.Fatalf("%d bytes, %d lines, %d reports, of %d", got.Len(), whole, reports, reported)
	}
	if reported[0] < 100 || uint64(whole)+reported[0] != lines {
		t.Errorf("%d lines written and %d dropped of %d", whole, reported[0], lines)
	}
}

// failingWriter fails in the calls whose numbers, from 0, are in fails.
type failingWriter struct {
	fails []int
	calls int
	text  bytes.Buffer
}

func (w *failingWriter) Write(p []byte) (int, error) {
	w.calls++
	if slices.Contains(w.fails, w.calls-1) {
		return 0, syscall.ENOSPC
	}
	return w.text.Write(p)
}

// If the line that reports dropped lines cannot be written either, it counts as dropped in the next report.
func TestDroppedReportIsCounted(t *testing.T) {
	out := &failingWriter{fails: []int{0, 2}}
	log := newLogWriter(out)
	log.report = func(n uint64) []byte { return fmt.Appendf(nil, "dropped %d\n", n) }
	for _, lines := range []string{"a\nb\nc\nd\ne\n", "f\n", "g\n"} {
		log.Write([]byte(lines))
		log.flush()
	}
	if got, want := out.text.String(), "f\ng\ndropped 6\n"; got != want { // a to e, and the first report
		t.Errorf("written: %q, want %q", got, want)
	}
}
