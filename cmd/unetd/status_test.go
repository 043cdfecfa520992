//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// unetd status shows the endpoint and the sockets of a host with the values that the host has, and the shell
// completion offers endpoints and interfaces.
func TestStatus(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true, LinkLocal: true})
	s := newSite(t, pair.A)
	d := s.serve(t)
	if out := s.run(t, "status"); out != "no endpoint or socket matches\n" {
		t.Errorf("without endpoints: %s", out)
	}
	host, err := unet.Open(t.Context(), unet.Config{Socket: s.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	listener, err := host.Listen(t.Context(), "tcp", ":7000")
	if err != nil {
		t.Fatal(err)
	}
	const size = 100_000
	var servers []net.Conn
	for _, to := range []string{"10.0.0.1:7000", "[fd00::1]:7000"} {
		client, err := pair.B.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		servers = append(servers, server)
		go client.Write(make([]byte, size))
		if _, err := io.CopyN(io.Discard, server, size); err != nil {
			t.Fatal(err)
		}
	}
	status := func(args ...string) (list []struct {
		endpoint.Status
		User string
	}) {
		t.Helper()
		if err := json.Unmarshal([]byte(s.run(t, "status", append(args, "--json")...)), &list); err != nil {
			t.Error(err)
		}
		return list
	}
	testutil.Eventually(t, "all values are published", func() bool {
		list := status("-t")
		if len(list) != 1 {
			return false
		}
		established := slices.DeleteFunc(list[0].Sockets, func(k endpoint.Socket) bool { return k.State != "established" })
		if len(established) != len(servers) {
			return false
		}
		for i, k := range established {
			info := servers[i].(*unet.TCPConn).Info()
			if k.BytesIn != size || k.BytesIn != info.BytesReceived || k.RTT != info.RTT || k.Local.String() != info.Local.String() || k.Remote != info.Remote.Netip() ||
				int(k.Window) != info.CongestionWindow || k.Received != info.SegmentsReceived {
				return false
			}
		}
		return list[0].Published != nil && list[0].Published.Received > 0
	})
	all := status()
	e := all[0]
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if e.PID != os.Getpid() || e.Command != strings.TrimSpace(string(comm)) || e.User != "root" || e.Port == nil || e.Port.FramesOut == 0 || e.FillQueue == nil {
		t.Errorf("%+v", e)
	}
	for args, want := range map[string]string{
		fmt.Sprintf("-t %d", e.ID):     "tcp listening 7000, tcp established 7000, tcp established 7000",
		fmt.Sprintf("-t -l %d", e.ID):  "tcp listening 7000",
		fmt.Sprintf("-t %d", e.ID+100): "",
	} {
		var got []string
		for _, e := range status(strings.Fields(args)...) {
			for _, k := range e.Sockets {
				got = append(got, fmt.Sprint(k.Protocol, " ", k.State, " ", k.Local.Port()))
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %q, want %s", args, got, want)
		}
	}
	text := s.run(t, "status", "-t")
	for _, want := range []string{fmt.Sprintf("endpoint %d  user 0(root)  pid %d(", e.ID, os.Getpid()), "tcp:10.0.0.1:7000", "established", "[fd00::1]:7000"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q:\n%s", want, text)
		}
	}
	if text := s.run(t, "status", "--rates"); !strings.Contains(text, "\n  rates    in ") {
		t.Errorf("no rates:\n%s", text)
	}
	for _, c := range []struct{ line, want string }{
		{"status --socket " + s.socket, fmt.Sprintf("%d\tuid 0, pid %d\n:4\n", e.ID, os.Getpid())},
		{"revoke --socket " + s.socket, fmt.Sprintf("%d\tuid 0, pid %d\n:4\n", e.ID, os.Getpid())},
		{"revoke --socket " + s.socket + " 1", ":4\n"},
		{"capture --interface", "lo\n" + pair.A.Interface + "\n"},
		{"capture --interface lo", ":4\n"},
		{"serve --interface", "lo\n" + pair.A.Interface + "\n"},
		{"doctor --interface", "lo\n" + pair.A.Interface + "\n"},
		{"check-config --as root --interface", "lo\n" + pair.A.Interface + "\n"},
	} {
		// cobra writes a comment of its own to stderr.
		_, words, _ := runHere(t, pair.A, append(append([]string{"__complete"}, strings.Fields(c.line)...), "")...)
		if !strings.HasPrefix(words, c.want) {
			t.Errorf("completion of %s: %s", c.line, words)
		}
	}
	d.stop(syscall.SIGTERM)
}

// unetd status and list show the memory paths of endpoints, and the frames by them.
func TestStatusOfMemoryPaths(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	d := s.serve(t)
	if out := s.run(t, "list"); strings.Contains(out, "PATHS") {
		t.Errorf("without paths:\n%s", out)
	}
	var hosts [2]*unet.Host
	for i := range hosts {
		var err error
		hosts[i], err = unet.Open(t.Context(), unet.Config{Socket: s.socket})
		testutil.Must(t, err)
		defer hosts[i].Close()
	}
	listener, err := hosts[1].Listen(t.Context(), "tcp", ":7000")
	testutil.Must(t, err)
	defer listener.Close()
	client, err := hosts[0].Dial("tcp", listener.Addr().String())
	testutil.Must(t, err)
	defer client.Close()
	server, err := listener.Accept()
	testutil.Must(t, err)
	defer server.Close()
	go io.Copy(server, server)
	testutil.Eventually(t, "both processes publish frames by a path", func() bool {
		const text = "there and back"
		testutil.Renew(client)
		_, err := io.WriteString(client, text)
		testutil.Must(t, err)
		_, err = io.CopyN(io.Discard, client, int64(len(text)))
		testutil.Must(t, err)
		var list []endpoint.Status
		testutil.Must(t, json.Unmarshal([]byte(s.run(t, "status", "--json")), &list))
		return len(list) == 2 && !slices.ContainsFunc(list, func(e endpoint.Status) bool {
			return e.Paths != 1 || e.Published == nil || e.Published.PathSent == 0 || e.Published.PathReceived == 0 || e.Published.PathDropped != 0
		})
	})
	if out := s.run(t, "status"); strings.Count(out, "\n  memory   1 path  in ") != 2 {
		t.Errorf("status:\n%s", out)
	}
	if out := s.run(t, "list"); !strings.Contains(out, "  STATE   PATHS  TAGS\n") || strings.Count(out, "  leased  1      tcp:") != 2 {
		t.Errorf("list:\n%s", out)
	}
	d.stop(syscall.SIGTERM)
}

// A wrong argument is an error of the command line. If the reader closes the pipe, SIGPIPE ends the command without a
// message.
func TestStatusErrors(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	for args, want := range map[string]string{
		"web":          `unetd: "web" is not the number of an endpoint (see unetd list): see unetd status --help`,
		"0":            `unetd: "0" is not the number of an endpoint (see unetd list): see unetd status --help`,
		"1 2":          "unetd: accepts at most 1 arg(s), received 2",
		"--watch=-1":   "unetd: --watch -1: want 0.1 to 86400 seconds: see unetd status --help",
		"--watch=nan":  "unetd: --watch NaN: want 0.1 to 86400 seconds: see unetd status --help",
		"--watch=soon": "unetd: invalid argument ",
	} {
		code, stdout, stderr := runHere(t, pair.A, s.args("status", strings.Fields(args)...)...)
		if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %s%s, want %s", args, code, stdout, stderr, want)
		}
	}
	if code, stdout, stderr := runHere(t, pair.A, s.args("status")...); code != exitFailure || stdout != "" || !strings.Contains(stderr, "unetd is not running at "+s.socket) {
		t.Errorf("without unetd: exit %d, %s%s", code, stdout, stderr)
	}

	d := s.serve(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.command("status", "--watch=0.1")
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	r.Close()
	kill := time.AfterFunc(testTimeout, func() { cmd.Process.Kill() })
	defer kill.Stop()
	cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGPIPE || stderr.Len() > 0 {
		t.Errorf("a closed pipe: %v, %s", cmd.ProcessState, stderr.String())
	}
	d.stop(syscall.SIGTERM)
}
