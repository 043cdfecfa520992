package test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
)

// TestUnprivilegedEcho is the main job: unetd on two hosts, processes of nobody
// without a capability, datagrams and messages between them, and the kernel of
// the other host as a client.
func TestUnprivilegedEcho(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	unetdA, socketA := daemon(t, pair.A)
	unetdB, socketB := daemon(t, pair.B)
	at := fmt.Sprintf("%v:7000", pair.A.Addr.Addr())
	server := start(t, pair.A, netlab.Nobody(), command(t, "echo"), "serve", "--socket", socketA, "--listen", at)
	server.await(t, "answering on")
	hasNoPrivilege(t, server)

	for _, kind := range []string{"--message=false", "--message"} {
		ping := start(t, pair.B, netlab.Nobody(), command(t, "echo"), "ping", "--socket", socketB, "--to", at, "-n", "20", kind)
		if err := ping.end(t); err != nil {
			t.Fatalf("ping %s: %v", kind, err)
		}
		if !strings.Contains(ping.output(), "20 sent, 20 answered") {
			t.Errorf("ping %s printed:\n%s", kind, ping.output())
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

	if err := server.stop(t); err != nil {
		t.Errorf("echo serve on SIGTERM: %v", err)
	}
	for _, d := range []*process{unetdA, unetdB} {
		if err := d.stop(t); err != nil {
			t.Errorf("unetd on SIGTERM: %v", err)
		}
	}
	untouched(t, pair.A)
	untouched(t, pair.B)
	if _, err := os.Stat(socketA); !os.IsNotExist(err) {
		t.Errorf("socket after SIGTERM: %v", err)
	}
}

// hasNoPrivilege reads what the kernel says of a process.
func hasNoPrivilege(t *testing.T, p *process) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
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

// TestKilledApplication: what a process held goes when it is killed, with
// unetd alive and with unetd killed before.
func TestKilledApplication(t *testing.T) {
	for _, daemonFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("daemon killed first=%v", daemonFirst), func(t *testing.T) {
			pair := netlab.RequirePair(t, netlab.Config{})
			unetd, socket := daemon(t, pair.A)
			at := fmt.Sprintf("%v:7000", pair.A.Addr.Addr())
			server := start(t, pair.A, netlab.Nobody(), command(t, "echo"), "serve", "--socket", socket, "--listen", at)
			server.await(t, "answering on")
			if n := len(links(t, pair.A)); n != 4 { // lo, uplink, two ports
				t.Fatalf("devices while serving: %v", links(t, pair.A))
			}
			victims := []*process{server, unetd}
			if daemonFirst {
				victims = []*process{unetd, server}
			}
			for _, v := range victims {
				v.cmd.Process.Signal(syscall.SIGKILL) // the server may have ended by itself
				v.end(t)
			}
			untouched(t, pair.A)
		})
	}
}

// TestDaemonKilled: an application that waits for datagrams learns that unetd,
// and with it its tags, is gone, and ends instead of waiting for ever.
func TestDaemonKilled(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	unetd, socket := daemon(t, pair.A)
	at := fmt.Sprintf("%v:7000", pair.A.Addr.Addr())
	server := start(t, pair.A, netlab.Nobody(), command(t, "echo"), "serve", "--socket", socket, "--listen", at)
	server.await(t, "answering on")
	if err := unetd.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	unetd.end(t)
	if err := server.end(t); err == nil {
		t.Error("the server ended as if nothing had happened")
	}
	if !strings.Contains(server.output(), "lease closed") {
		t.Errorf("the server said: %s", server.output())
	}
	untouched(t, pair.A)
}

// TestRestartedServer: a port that a killed process held can be claimed at once
// by the next one.
func TestRestartedServer(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socket := daemon(t, pair.A)
	at := fmt.Sprintf("%v:7000", pair.A.Addr.Addr())
	for range 5 {
		server := start(t, pair.A, netlab.Nobody(), command(t, "echo"), "serve", "--socket", socket, "--listen", at)
		server.await(t, "answering on")
		conn := kernelDial(t, pair.B, at)
		conn.Write([]byte("x"))
		if _, err := conn.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		server.cmd.Process.Kill()
		server.end(t)
		awaitFree(t, socket, at)
	}
}
