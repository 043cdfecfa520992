//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
)

// capturing is a running unetd capture.
type capturing struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr chan string // lines
	stdout bytes.Buffer
}

// startCapture starts a capture and waits until it runs. Without stdout its output is kept.
func startCapture(t *testing.T, s *site, stdout *os.File, args ...string) *capturing {
	t.Helper()
	c := &capturing{t: t, cmd: s.command("capture", args...)}
	if c.cmd.Stdout = stdout; stdout == nil {
		c.cmd.Stdout = &c.stdout
	}
	c.start(s)
	if line := <-c.stderr; !strings.HasPrefix(line, "capturing ") {
		t.Fatalf("unetd capture %v: %s", args, line)
	}
	return c
}

// start starts the command. Its stderr goes to c.stderr.
func (c *capturing) start(s *site) {
	c.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	c.cmd.Stderr = w
	err = s.host.Start(c.cmd)
	w.Close()
	if err != nil {
		c.t.Fatal(err)
	}
	c.stderr = make(chan string, 1000)
	go func() {
		defer close(c.stderr)
		defer r.Close()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			c.stderr <- lines.Text()
		}
	}()
	killAtEnd(c.t, c.cmd)
}

// end waits for the end of the capture. It returns its exit code and its stderr after the first line.
func (c *capturing) end() (code int, stderr string) {
	c.t.Helper()
	kill := time.AfterFunc(testTimeout, func() { c.cmd.Process.Kill() })
	defer kill.Stop()
	c.cmd.Wait()
	for line := range c.stderr {
		stderr += line + "\n"
	}
	return c.cmd.ProcessState.ExitCode(), stderr
}

// stop ends the capture as Ctrl-C does.
func (c *capturing) stop() (stderr string) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		c.t.Fatal(err)
	}
	code, stderr := c.end()
	if code != 0 {
		c.t.Errorf("exit %d: %s", code, stderr)
	}
	return stderr
}

// packet is a packet as tshark reads it.
type packet struct{ iface, direction, length, src, dst, sport, dport, payload, comment string }

// tshark reads a file. tshark must report no error.
func tshark(t *testing.T, file string) (list []packet) {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("UNET_REQUIRE_TOOLS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	args := []string{"-r", file, "-n", "-T", "fields", "-E", "separator=|"}
	for _, f := range strings.Fields("frame.interface_name frame.packet_flags_direction frame.len ip.src ip.dst udp.srcport udp.dstport udp.payload frame.comment") {
		args = append(args, "-e", f)
	}
	cmd := exec.Command(path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	errorLines := ""
	for line := range strings.Lines(stderr.String()) {
		if !strings.Contains(line, "as user \"root\"") {
			errorLines += line
		}
	}
	if err != nil || errorLines != "" {
		t.Fatalf("tshark: %v: %s", err, errorLines)
	}
	for line := range strings.Lines(stdout.String()) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", 9)
		for i := range f {
			f[i] = strings.ReplaceAll(f[i], "0x00000001", "in")
			f[i] = strings.ReplaceAll(f[i], "0x00000002", "out")
		}
		list = append(list, packet{f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8]})
	}
	return list
}

// open opens a host of unet on a site, with a UDP socket at an address.
func (s *site) open(t *testing.T, at string) (*unet.Host, net.PacketConn) {
	t.Helper()
	host, err := unet.Open(t.Context(), unet.Config{Socket: s.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	conn, err := host.ListenPacket(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(testTimeout))
	return host, conn
}

// A capture of an endpoint has the frames of both directions, whole and in order, and none of the kernel or of
// another endpoint.
func TestCaptureEndpoint(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.serve(t, "--mode", "tcx")
	_, conn := s.open(t, ":7000")
	_, other := s.open(t, ":7001")
	file := filepath.Join(t.TempDir(), "a.pcapng")
	c := startCapture(t, s, nil, "1", "-w", file)
	var want []packet
	for i, conn := range []net.PacketConn{conn, other} {
		client, err := pair.B.Dial("udp", fmt.Sprintf("%v:%d", pair.A.Addr.Addr(), 7000+i))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		client.SetDeadline(time.Now().Add(testTimeout))
		port := fmt.Sprint(client.LocalAddr().(*net.UDPAddr).Port)
		for _, size := range []int{1, 18, 64, 512, 1472} {
			payload := bytes.Repeat([]byte{byte(size)}, size)
			exchange(t, client, conn, payload)
			if i == 0 {
				length, data := fmt.Sprint(14+20+8+size), fmt.Sprintf("%x", payload)
				want = append(want, packet{"unet1", "in", length, "10.0.0.2", "10.0.0.1", port, "7000", data, ""},
					packet{"unet1", "out", length, "10.0.0.1", "10.0.0.2", "7000", port, data, ""})
			}
		}
	}
	if stderr := c.stop(); stderr != "10 packets captured, 0 lost because the buffer was full\n" {
		t.Errorf("%s", stderr)
	}
	got := tshark(t, file)
	if len(got) != len(want) {
		t.Fatalf("%d packets, want %d: %+v", len(got), len(want), got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("packet %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

// exchange sends payload to a server, which sends it back.
func exchange(t *testing.T, client net.Conn, server net.PacketConn, payload []byte) {
	t.Helper()
	buf := make([]byte, 4096)
	if _, err := client.Write(payload); err != nil {
		t.Fatal(err)
	}
	n, from, err := server.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.WriteTo(buf[:n], from); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Read(buf); err != nil || !bytes.Equal(buf[:n], payload) {
		t.Fatalf("%d bytes came back, %v", n, err)
	}
}
