//go:build linux

package test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// TestUnprivilegedEcho is the main use: unetd on two hosts, processes of user nobody
// without capabilities, datagrams and messages between them, and the kernel of
// the other host as a client.
func TestUnprivilegedEcho(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	daemonA, socketA := daemon(t, pair.A)
	daemonB, socketB := daemon(t, pair.B)
	at := fmt.Sprintf("%v:7000", pair.A.Addr.Addr())
	server := serve(t, pair.A, socketA, at)
	hasNoPrivilege(t, server)

	for _, kind := range []string{"--message=false", "--message"} {
		ping := unetd.Start(t, pair.B, netlab.Nobody(), unetd.Command(t, "echo"), "ping", "--socket", socketB, "--to", at, "-n", "20", kind)
		if err := ping.End(t); err != nil {
			t.Fatalf("ping %s: %v", kind, err)
		}
		if !strings.Contains(ping.Output(), "20 sent, 20 answered") {
			t.Errorf("ping %s printed:\n%s", kind, ping.Output())
		}
	}

	conn := kernelDial(t, pair.B, at)
	buf := make([]byte, 2048)
	for size := 0; size <= 1472; size += 92 {
		payload := bytes.Repeat([]byte{byte(size)}, size)
		if _, err := conn.Write(payload); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buf)
		if err != nil || !bytes.Equal(buf[:n], payload) {
			t.Fatalf("%d bytes to the kernel's client came back as %d, %v", size, n, err)
		}
	}
	if n := kernelPing(t, pair.B, pair.A.Addr.Addr(), 5); n != 5 {
		t.Errorf("the kernel answered %d of 5 pings beside the mux", n)
	}

	if err := server.Stop(t); err != nil {
		t.Errorf("echo serve on SIGTERM: %v", err)
	}
	for _, d := range []*unetd.Daemon{daemonA, daemonB} {
		if err := d.Stop(t); err != nil {
			t.Errorf("unetd on SIGTERM: %v", err)
		}
	}
	unetd.Untouched(t, pair.A)
	unetd.Untouched(t, pair.B)
	if _, err := os.Stat(socketA); !os.IsNotExist(err) {
		t.Errorf("socket after SIGTERM: %v", err)
	}
}

// hasNoPrivilege checks a process's privileges in /proc.
func hasNoPrivilege(t *testing.T, p *unetd.Process) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d", netlab.NobodyID),
		fmt.Sprintf("Gid:\t%d\t%[1]d\t%[1]d\t%[1]d", netlab.NobodyID),
		"CapPrm:\t0000000000000000",
		"CapEff:\t0000000000000000",
	} {
		if !bytes.Contains(status, []byte(want+"\n")) {
			t.Errorf("the server is not without privilege: %q is not in\n%s", want, status)
		}
	}
}

// serve starts the example's server as user nobody and returns when it answers.
func serve(t *testing.T, h *netlab.Host, socket, at string) *unetd.Process {
	t.Helper()
	p := unetd.Start(t, h, netlab.Nobody(), unetd.Command(t, "echo"), "serve", "--socket", socket, "--listen", at)
	p.Await(t, "answering on")
	return p
}

// answers reports whether a datagram from host B's kernel comes back.
func answers(t *testing.T, pair *netlab.Pair, at string) error {
	t.Helper()
	conn := kernelDial(t, pair.B, at)
	defer conn.Close()
	conn.Write([]byte("anybody?"))
	buf := make([]byte, 16)
	n, err := conn.Read(buf)
	if err == nil && string(buf[:n]) != "anybody?" {
		t.Errorf("echo %q", buf[:n])
	}
	return err
}

// TestKilledApplicationReleasesAll: what a process held is released when it is killed, while unetd runs
// and after unetd was killed. Its port is the kernel's again.
func TestKilledApplicationReleasesAll(t *testing.T) {
	for _, daemonFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("daemon killed first=%v", daemonFirst), func(t *testing.T) {
			pair := netlab.RequirePair(t, netlab.Config{})
			d, socket := daemon(t, pair.A)
			at := fmt.Sprintf("%v:7000", pair.A.Addr.Addr())
			server := serve(t, pair.A, socket, at)
			if n := len(unetd.Links(t, pair.A)); n != 7 { // lo, uplink, its cutter, the pair to the host, two ports
				t.Fatalf("devices while serving: %v", unetd.Links(t, pair.A))
			}
			if err := answers(t, pair, at); err != nil { // now it has the route to host B, which only unetd can give
				t.Fatal(err)
			}
			if daemonFirst {
				d.Kill(t)
				if err := answers(t, pair, at); err != nil {
					t.Errorf("while unetd is dead: %v", err)
				}
			}
			server.Kill(t)
			if !testutil.Until(func() bool { return len(unetd.Links(t, pair.A)) == 5 }) {
				t.Errorf("devices after the server was killed: %v", unetd.Links(t, pair.A))
			}
			if err := answers(t, pair, at); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a datagram to a port without a socket: %v, want ECONNREFUSED from the kernel", err)
			}
			if daemonFirst {
				d.Start(t)
			}
			serve(t, pair.A, socket, at).Kill(t)
			if err := d.Stop(t); err != nil {
				t.Errorf("unetd on SIGTERM: %v", err)
			}
			unetd.Untouched(t, pair.A)
		})
	}
}

// TestApplicationOutlivesDaemon: an application continues while unetd is dead and reconnects to the
// next one by itself, which takes it over, and ends its endpoint when it is stopped.
func TestApplicationOutlivesDaemon(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	d, socket := daemon(t, pair.A)
	at := fmt.Sprintf("%v:7000", pair.A.Addr.Addr())
	server := serve(t, pair.A, socket, at)
	if err := answers(t, pair, at); err != nil { // now it has the route to host B, which only unetd can give
		t.Fatal(err)
	}
	for range 3 {
		d.Kill(t)
		if err := answers(t, pair, at); err != nil {
			t.Fatalf("while unetd is dead: %v", err)
		}
		d.Start(t)
		if !testutil.Until(func() bool { return leased(t, socket) == 2 }) { // datagrams and messages
			t.Fatalf("%d endpoints have been presented again", leased(t, socket))
		}
		if err := answers(t, pair, at); err != nil {
			t.Fatalf("after a restart: %v", err)
		}
	}
	if err := d.Stop(t); err != nil {
		t.Errorf("unetd on SIGTERM: %v", err)
	}
	if err := server.End(t); err == nil {
		t.Error("the server ended without an error")
	}
	if !strings.Contains(server.Output(), "lease closed") {
		t.Errorf("the server said: %s", server.Output())
	}
	unetd.Untouched(t, pair.A)
}

// leased is the number of endpoints whose process is connected to unetd.
func leased(t *testing.T, socket string) (n int) {
	t.Helper()
	all, err := control.Operator{Socket: socket}.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Leased {
			n++
		}
	}
	return n
}

// TestPortOfKilledProcessIsFree: a port that a killed process held can be claimed at once
// by the next one.
func TestPortOfKilledProcessIsFree(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socket := daemon(t, pair.A)
	at := fmt.Sprintf("%v:7000", pair.A.Addr.Addr())
	for range 5 {
		server := serve(t, pair.A, socket, at)
		if err := answers(t, pair, at); err != nil {
			t.Fatal(err)
		}
		server.Kill(t)
		awaitFree(t, socket, at)
	}
}
