//go:build linux

package main

import (
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
func (s *site) serveWithStderr(t *testing.T, stderr *os.File) *exec.Cmd {
	t.Helper()
	cmd := s.command("serve", "--log-level", "debug", "--ready-fd", "3")
	ready, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	cmd.ExtraFiles, cmd.Stderr = []*os.File{w}, stderr
	if err := s.host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	w.Close()
	if err := ready.SetReadDeadline(time.Now().Add(patience)); err != nil {
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
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	small := endpoint.Geometry{FrameCount: 64, FillSize: 64, CompletionSize: 64, RxSize: 64, TxSize: 64}
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for range leases / atOnce {
				g, l, err := control.Open(ctx, s.socket, endpoint.Request{Geometry: small})
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
func TestLogIsNotRead(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	r, w := fullPipe(t)
	cmd := s.serveWithStderr(t, w)
	s.openAndClose(t, 1000)
	if t.Failed() {
		return
	}

	var text bytes.Buffer
	lines := make(chan struct{}, 1)
	var mu sync.Mutex
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := r.Read(b)
			mu.Lock()
			text.Write(b[:n])
			mu.Unlock()
			select {
			case lines <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	timeout := time.After(patience)
	said := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(text.String(), `msg="lines of this log were dropped`)
	}
	for !said() {
		select {
		case <-lines:
		case <-timeout:
			t.Fatalf("the log does not report dropped lines:\n%s", text.String())
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A full pipe does not delay the end of unetd.
func TestEndWhileLogIsNotRead(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	_, w := fullPipe(t)
	cmd := s.serveWithStderr(t, w)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer kill.Stop()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if left := attached(t, pair.A); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// The reader of the log may end at any time.
func TestReaderOfTheLogIsGone(t *testing.T) {
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
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if left := attached(t, pair.A); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// Each lease that is granted, refused or ended is a record with its user and process, but those of one user have a
// limit, and what is left out is counted.
func TestLeasesAreLogged(t *testing.T) {
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
	metric := string(scraper(t, path)())
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
		of := r.UID != nil && *r.UID == 0 && r.PID == os.Getpid() && r.Level == "INFO"
		switch r.Msg {
		case "endpoint granted":
			of = of && r.Endpoint > 0 && r.Attach == "port" && r.Mode == "tcx" && r.Interface == pair.A.Interface
		case "endpoint ended":
			of = of && r.Endpoint > 0 && (r.Reason == "its application has closed it, or has ended" || r.Reason == "unetd was stopped")
		case "endpoint refused":
			of = of && r.Code == "geometry" && r.Error != ""
		default:
			continue
		}
		if !of {
			t.Errorf("%s", line)
		}
	}
	all := records["endpoint granted"] + records["endpoint ended"] + records["endpoint refused"]
	if records["endpoint granted"] < 8 || records["endpoint ended"] < 8 || records["endpoint refused"] != 1 || all < 64 { // of 337
		t.Errorf("%v", records)
	}
	if !strings.Contains(metric, "\nunet_log_suppressed_records_total ") || strings.Contains(metric, "\nunet_log_suppressed_records_total 0\n") {
		t.Errorf("%s", metric)
	}
}

// Values of the log are strings in JSON too: the policy is a path.
func TestJSONLog(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--policy", file, "--log-format", "json")
	d.awaitLine(`"msg":"policy","policy":"` + file + `","rules":2`)
	d.awaitLine(`"msg":"mux attached"`, `"mode":"tcx"`)
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	d.awaitLine(`"msg":"policy reloaded","policy":"` + file + `","rules":2`)
	d.stop(syscall.SIGTERM)
}

// Each line is written whole, or is counted as dropped, also if there is no room for
// another line when the number is reported.
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

// failingWriter fails in the calls whose number, from 0, is in fails.
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

// The line that reports dropped lines cannot be written either: the next one has all.
func TestLogReportIsDropped(t *testing.T) {
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
