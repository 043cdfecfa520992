//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// A capture that is not possible is refused in one line: exit code 1, or 2 if the command line is wrong.
func TestCaptureRefusals(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	capture := func(args ...string) (code int, stdout, stderr string) {
		return finish(t, pair.A, s.command("capture", args...))
	}
	if code, _, stderr := capture("1"); code != 1 || !strings.Contains(stderr, "no unetd of this network namespace") {
		t.Errorf("without unetd: exit %d, %s", code, stderr)
	}
	d := s.serve(t)
	if code, _, stderr := capture("1"); code != 1 || !strings.Contains(stderr, "there is no endpoint 1: there are none on uplink") {
		t.Errorf("without endpoints: exit %d, %s", code, stderr)
	}
	s.open(t, ":7000")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", 2, "--interface is missing"},
		{"x", 2, `"x" is not the number of an endpoint`},
		{"1 tcp port", 2, `unexpected "tcp": give the frames to tcpdump`},
		{"1 -s -1", 2, "snapshot-length"},
		{"9", 1, "there is no endpoint 9: there are 1 on uplink"},
		{"--interface nosuch", 1, "unetd does not serve nosuch: it serves uplink"},
		{"1 -w /nosuch/file", 1, "no such file"},
		{"1 -w /dev/full", 1, "no space left"},
		{"1 --bpffs /proc", 1, "not a bpffs"},
	} {
		code, stdout, stderr := capture(strings.Fields(c.args)...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("capture %s: exit %d, %s%s", c.args, code, stdout, stderr)
		}
	}
	cmd := s.command("capture", "1")
	cmd.SysProcAttr = netlab.Nobody()
	if code, _, stderr := finish(t, pair.A, cmd); code != 1 || !strings.Contains(stderr, "permission denied") {
		t.Errorf("user nobody: exit %d, %s", code, stderr)
	}
	d.stop(syscall.SIGTERM)

	s.serve(t, "--mode", "native")
	if code, _, stderr := capture("--interface", "uplink"); code != 1 || !strings.Contains(stderr, "native mode") {
		t.Errorf("native mode: exit %d, %s", code, stderr)
	}
}

// A disk that is full during a capture ends the capture with an error, a closed pipe without one. unetd and the
// endpoint go on.
func TestCaptureToFullDiskOrClosedPipe(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.serve(t)
	_, conn := s.open(t, ":7000")
	client, err := pair.B.Dial("udp", fmt.Sprintf("%v:7000", pair.A.Addr.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(disk, unix.MNT_DETACH)
	c := startCapture(t, s, nil, "1", "-w", filepath.Join(disk, "a.pcapng"))
	var code int
	var stderr string
	done := make(chan struct{})
	go func() {
		defer close(done)
		code, stderr = c.end()
	}()
	for ended := false; !ended; { // until the disk is full
		exchange(t, client, conn, make([]byte, 1000))
		select {
		case <-done:
			ended = true
		default:
		}
	}
	if code != 1 || !strings.Contains(stderr, "no space left on device") {
		t.Errorf("full disk: exit %d, %s", code, stderr)
	}

	for _, args := range [][]string{{"1"}, {"1", "-w", "-"}} { // a closed pipe is noticed without a packet too
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c := startCapture(t, s, w, args...)
		w.Close()
		r.Close()
		if code, stderr := c.end(); code != 0 || stderr != "0 packets captured, 0 lost because the buffer was full\n" {
			t.Errorf("closed pipe: exit %d, %s", code, stderr)
		}
	}
	exchange(t, client, conn, []byte("still there"))
}

// A capture ends when its endpoint or unetd ends. A capture that is killed leaves no program in the kernel.
func TestCaptureEndsWithEndpointOrUnetd(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	d := s.serve(t)
	host, conn := s.open(t, ":7000")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := startCapture(t, s, w, "1", "-w", "-", "-s", "60")
	w.Close()
	client, err := pair.B.Dial("udp", fmt.Sprintf("%v:7000", pair.A.Addr.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	exchange(t, client, conn, bytes.Repeat([]byte("x"), 1000))

	killed := startCapture(t, s, nil, "1", "-w", os.DevNull)
	programs := tracingPrograms(t, killed.cmd.Process.Pid)
	if len(programs) != 3 {
		t.Fatalf("programs %v", programs)
	}
	killed.cmd.Process.Kill()
	killed.end()
	awaitUnloaded(t, programs)

	interfaces := startCapture(t, s, nil, "--interface", "uplink")
	host.Close()
	code, stderr := c.end()
	if code != 0 || !strings.HasPrefix(stderr, "endpoint 1 has ended\n") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	piped := filepath.Join(t.TempDir(), "piped.pcapng")
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(piped, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	lengths := ""
	for _, p := range tshark(t, piped) {
		if p.dport == "7000" || p.sport == "7000" {
			lengths += p.length + " "
		}
	}
	if lengths != "1042 1042 " {
		t.Errorf("lengths %s", lengths)
	}
	d.stop(syscall.SIGTERM)
	if code, stderr := interfaces.end(); code != 0 || !strings.HasPrefix(stderr, "unetd has removed its programs from uplink\n") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

// tracingPrograms are the programs that the process of a capture has loaded.
func tracingPrograms(t *testing.T, pid int) (ids []ebpf.ProgramID) {
	t.Helper()
	held, err := netlab.HeldBPF(pid)
	if err != nil {
		t.Fatal(err)
	}
	for o := range held {
		if id := ebpf.ProgramID(o.ID); o.Kind == "prog" && strings.HasPrefix(nameOf(id), "unet_capture") {
			ids = append(ids, id)
		}
	}
	return ids
}

// nameOf is the name of a program, or "" if there is no program with that number.
func nameOf(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}
