//go:build linux

package drivers_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/test/internal/unetd"
)

// kind is a kind of interface on which unetd serves, with the name nic, and what its peer has for it. The commands are
// of ip(8). They find two veth pairs: own0 and own1 in the namespace own, peer0 and peer1 in the guest's first one, and
// there the bridge at.
//
//	        namespace own                       first namespace of the guest
//	┌────────────────────────────┐            ┌─────────────────────────────────────┐
//	│ unetd, echo   nic ── own0 ─┼─── veth ───┼─ peer0 ── at   the kernel's sockets │
//	│ 10.8.0.1          ── own1 ─┼─── veth ───┼─ peer1 ──      10.8.0.2, rxe0       │
//	└────────────────────────────┘            └─────────────────────────────────────┘
type kind struct {
	name    string
	own     string    // makes nic, or is empty: then own0 is given that name
	also    string    // more commands in the namespace own, with nic set up and without an address
	peer    string    // makes the bridge's ports
	refused string    // why unetd does not serve it; what the error has to say
	bond    bool      // nic has two ports, of which one is active
	table   string    // of a VRF
	short   withShort // with -short
}

const (
	onePort  = "link set peer0 master at"
	twoPorts = "link set peer0 master at; link set peer1 master at"
	ofBond   = "link set own0 master nic; link set own1 master nic"
)

var kinds = []kind{
	{name: "bond active-backup", own: "link add nic type bond mode active-backup miimon 50; " + ofBond, peer: twoPorts, bond: true, short: bothKernels},
	{name: "bond 802.3ad", own: "link add nic type bond mode 802.3ad miimon 50 lacp_rate fast; " + ofBond,
		peer: "link add lag type bond mode 802.3ad miimon 50 lacp_rate fast; link set peer0 down; link set peer1 down; link set peer0 master lag; link set peer1 master lag; link set lag up; link set lag master at"},
	{name: "vlan", own: "link add link own0 name nic type vlan id 5", peer: "link add link peer0 name tagged type vlan id 5; link set tagged up; link set tagged master at", short: bothKernels},
	{name: "bridge", own: "link add nic type bridge; link set own0 master nic", peer: onePort},
	{name: "macvlan", own: "link add link own0 name nic type macvlan mode bridge", peer: onePort},
	{name: "ipvlan l2", own: "link add link own0 name nic type ipvlan mode l2", peer: onePort},
	{name: "ipvlan l3", own: "link add link own0 name nic type ipvlan mode l3", peer: onePort, refused: "make it with mode l2"},
	{name: "vrf member", also: "link add red type vrf table 10; link set red up; link set nic master red", peer: onePort, table: "10", short: bothKernels},
	{name: "vrf", own: "link add nic type vrf table 10", peer: onePort, refused: "serve its members"},
}

// inOwn is the command of a program in the namespace own.
func inOwn(program string, args ...string) []string {
	return append([]string{"nsenter", "--net=/run/netns/own", "/usr/bin/" + program}, args...)
}

// script is a shell script of commands of ip(8), which ends with the first that fails.
func script(before, commands string) string {
	s := "set -e\n"
	for c := range strings.SplitSeq(commands, ";") {
		if c = strings.TrimSpace(c); c != "" {
			s += before + "/usr/bin/ip " + c + "\n" // not the shell's own
		}
	}
	return s
}

// make makes the interface and its peer, which end with the test.
func (g *machine) make(t *testing.T, k kind) {
	t.Helper()
	t.Cleanup(func() {
		g.Try(t, "sh", "-c", "for i in peer0 peer1 lag at; do /usr/bin/ip link del $i; done; /usr/bin/ip netns del own; true")
	})
	own := "link set own0 up; link set own1 up;" + k.own
	if strings.Contains(k.own, "own0 master") { // a port of a bond has to be down when it becomes one
		own = k.own + "; link set own0 up; link set own1 up"
	} else if k.own == "" {
		own = "link set own0 name nic"
	}
	g.Run(t, "sh", "-c", script("", "netns add own; link add peer0 type veth peer name own0 netns own; link add peer1 type veth peer name own1 netns own;"+
		"link add at type bridge; link set peer0 up; link set peer1 up;"+k.peer+"; link set peer0 up; link set peer1 up; link set at up;"+
		"addr add 10.8.0.2/24 dev at; addr add fd08::2/64 dev at nodad")+
		script("nsenter --net=/run/netns/own ", "link set lo up;"+own+"; link set nic up;"+k.also+"; addr add 10.8.0.1/24 dev nic; addr add fd08::1/64 dev nic nodad"))
}

// serveOwn starts unetd on nic in the namespace own.
func (g *machine) serveOwn(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{g: g, nic: "nic", Socket: "/run/own.sock"}
	d.Process = g.Start(t, 0, inOwn("unetd", "serve", "--interface", "nic", "--socket", d.Socket, "--socket-mode", "0666")...)
	t.Cleanup(func() {
		d.Signal(syscall.SIGTERM)
		select {
		case <-d.Done:
		case <-time.After(unetd.TestTimeout):
			t.Errorf("unetd does not end")
		}
	})
	return d
}

// TestKindsOfInterfaces has unetd serve each kind: datagrams and streams of both families, in both directions, with the kernel as
// the peer, by a port and by a queue, and RDMA with the kernel's software device. A stream survives the failover of a
// bond. A kind that cannot be served is refused with what to do.
func TestKindsOfInterfaces(t *testing.T) {
	each(t, bothKernels, func(t *testing.T, g *machine) {
		for _, k := range kinds {
			t.Run(strings.ReplaceAll(k.name, " ", "_"), func(t *testing.T) {
				if testing.Short() && k.short != bothKernels {
					t.Skip("skipped: -short leaves this kind out")
				}
				testKind(t, kernelOf(g).boot(t), k)
			})
		}
	})
}

func testKind(t *testing.T, g *machine, k kind) {
	g.make(t, k)
	d := g.serveOwn(t)
	if k.refused != "" {
		<-d.Done
		if out := d.Output(); d.Err == nil || !strings.Contains(out, k.refused) {
			t.Errorf("unetd serve: %v, without %q:\n%s", d.Err, k.refused, out)
		}
		return
	}
	if _, err := d.Await("msg=ready", 0, unetd.TestTimeout); err != nil {
		t.Fatal(err)
	}
	peer := &echo{Process: g.Start(t, 0, "echo", "-kernel", "-listen", ":7")}
	peer.await(t)
	for _, a := range []struct {
		port  string
		flags []string
	}{{"7000", nil}, {"7001", []string{"-queue", "0"}}} {
		e := &echo{Process: g.Start(t, 0, inOwn("echo", append([]string{"-socket", d.Socket, "-listen", ":" + a.port}, a.flags...)...)...)}
		e.await(t)
		e.talk(t, "10.8.0.2:7")
		e.talk(t, "[fd08::2]:7")
		peer.talk(t, "10.8.0.1:"+a.port)
		peer.talk(t, "[fd08::1]:"+a.port)
		switch {
		case len(a.flags) > 0:
		case k.bond:
			g.failover(t, peer, "10.8.0.1:"+a.port)
		case k.table != "":
			g.routeInVRF(t, e, k.table)
		}
	}
	g.rdma(t, d)
	t.Logf("counters: %v", d.Counters(t))
}

// talk has a program exchange datagrams and a stream with a service.
func (e *echo) talk(t *testing.T, to string) {
	t.Helper()
	if said := e.Ask(t, "talk "+to+" 100000"); said != "ok" {
		t.Errorf("%s to %s: %s", strings.Join(e.Args, " "), to, said)
	}
}

// routeInVRF has a route of the VRF's table come and go: the endpoint's next connections follow it.
func (g *machine) routeInVRF(t *testing.T, e *echo, table string) {
	t.Helper()
	ip := func(verb string) {
		g.Run(t, "sh", "-c", script("nsenter --net=/run/netns/own ", "route "+verb+" prohibit 10.8.0.2 table "+table))
	}
	ip("add")
	said := ""
	for range 100 {
		if said = e.Ask(t, "stream 10.8.0.2:7 1"); said != "ok" {
			break
		}
	}
	if !strings.Contains(said, "permission denied") {
		t.Errorf("with a route of type prohibit in the VRF: %s", said)
	}
	ip("del")
	for range 100 {
		if said = e.Ask(t, "stream 10.8.0.2:7 1"); said == "ok" {
			return
		}
	}
	t.Errorf("without that route: %s", said)
}

// failover changes the active port of the bond a few times while a stream goes on.
func (g *machine) failover(t *testing.T, peer *echo, to string) {
	t.Helper()
	from := peer.Lines()
	question := "stream " + to + " 8000000"
	if err := peer.Input(question); err != nil {
		t.Fatal(err)
	}
	changes, active := 0, ""
	for ended := false; !ended && changes < 4; {
		for _, port := range []string{"own0", "own1"} {
			other := map[string]string{"own0": "own1", "own1": "own0"}[port]
			now := g.Run(t, "sh", "-c", script("nsenter --net=/run/netns/own ", "link set "+other+" up; link set "+port+" down")+
				"nsenter --net=/run/netns/own /usr/bin/cat /proc/net/bonding/nic | grep Active")
			if ended = peer.Lines() > from; !ended && now != active {
				changes, active = changes+1, now
			}
		}
	}
	g.Run(t, "sh", "-c", script("nsenter --net=/run/netns/own ", "link set own0 up; link set own1 up"))
	if line, err := peer.Await(question, from, unetd.TestTimeout); err != nil || line != question+" ok" || changes < 2 {
		t.Errorf("%d changes of the active port: %q, %v", changes, line, err)
	}
}

// rdma has perftest's program on the kernel's software device read the memory of ours.
func (g *machine) rdma(t *testing.T, d *daemon) {
	t.Helper()
	g.Run(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "at")
	g.Restore(t, "rdma", "link", "delete", "rxe0")
	server := g.Start(t, 0, inOwn("perftest", "--socket", d.Socket, "-n", "20", "-s", "2500", "read_lat")...)
	if _, err := server.Await("listening on", 0, unetd.TestTimeout); err != nil {
		t.Fatal(err)
	}
	if out, err := g.Try(t, "ib_read_lat", "-x", "1", "-F", "-n", "20", "-s", "2500", "10.8.0.1"); err != nil {
		t.Errorf("ib_read_lat: %v\n%s", err, out)
	}
	select {
	case <-server.Done:
	case <-time.After(unetd.TestTimeout):
		t.Errorf("perftest does not end: %s", fmt.Sprint(server.Output()))
	}
}
