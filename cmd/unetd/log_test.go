package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
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

// fullPipe is a pipe that takes no byte more.
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

// serveWithStderr starts unetd, which logs all it can to stderr.
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

// unetd works and ends while nobody reads its log, and says how much of it is
// missing when somebody does.
func TestNobodyReadsTheLog(t *testing.T) {
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
			t.Fatalf("the log does not say that lines are missing:\n%s", text.String())
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A pipe that is full does not hold up the end of unetd.
func TestEndWhileNobodyReadsTheLog(t *testing.T) {
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

// The reader of the log may go away at any time.
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

// Applications open and close leases without a line in the log, and are counted.
func TestLeasesAreNotLogged(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	d := s.serve(t)
	s.openAndClose(t, 16)
	if out := s.run(t, "counters"); !strings.Contains(out, "16  lease_granted") {
		t.Errorf("%s", out)
	}
	d.stop(syscall.SIGTERM)
	for _, line := range d.last {
		if strings.Contains(line, "lease") || strings.Contains(line, "endpoint=") {
			t.Errorf("logged: %s", line)
		}
	}
}

// What a line of the log says is text, also in JSON: the policy is a path.
func TestJSONLog(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--policy", file, "--log-format", "json")
	d.awaitLine(`"msg":"policy","policy":"` + file + `","rules":2`)
	d.awaitLine(`"msg":"mux attached"`, `"mode":"generic"`)
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	d.awaitLine(`"msg":"policy reloaded","policy":"` + file + `","rules":2`)
	d.stop(syscall.SIGTERM)
}

// Each line is written whole, or is in the number of those that were dropped, also when
// there is no room for another line at the moment at which that is to be said.
func TestLogWriter(t *testing.T) {
	r, w := io.Pipe() // takes nothing until somebody reads
	log := newLogWriter(w)
	var told []uint64
	const report = "report\n"
	log.report = func(n uint64) []byte { told = append(told, n); return []byte(report) }
	line := strings.Repeat("x", 1023) + "\n"
	const lines = 2*maxUnwritten/1024 + 100
	for range lines {
		if n, err := log.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	log.flush() // nobody reads: it gives up
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
	if reports != 1 || len(told) != 1 || got.Len() != whole*len(line)+len(report) {
		t.Fatalf("%d bytes, %d lines, %d reports, of %d", got.Len(), whole, reports, told)
	}
	if told[0] < 100 || uint64(whole)+told[0] != lines {
		t.Errorf("%d lines written and %d dropped of %d", whole, told[0], lines)
	}
}
