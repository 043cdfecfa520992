//go:build linux

package rdmapeers_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/guest"
	"github.com/unet-go/unet/test/internal/unetd"
	"github.com/unet-go/unet/wire"
)

var folder = flag.String("guest", "", "`folder` for the packages and the image of the guest; without it the tests are skipped")

func TestMain(m *testing.M) { unetd.Main(m) }

// setup is a guest and a host with unet, on an impaired link.
type setup struct {
	pair   *netlab.Pair
	link   *impair.Link
	guest  *guest.Guest
	report strings.Builder

	commands map[string]string // the paths of our programs
	socket   string            // of unetd
}

// TestProgramsOfRDMACore runs each program of the guest. At the end it prints a line for each.
func TestProgramsOfRDMACore(t *testing.T) {
	if *folder == "" {
		t.Skip("skipped: the guest is made of packages from the network: make test-rdma-peers")
	}
	spec.Dir = filepath.Join(*folder, "rdmapeers")
	im, err := guest.Open(spec)
	testutil.Must(t, err)
	s := &setup{pair: netlab.RequirePair(t, netlab.Config{Cut: true})}
	var only atomic.Pointer[func(frame []byte) bool] // frames that the rule of the link applies to
	spare := func(frame []byte) bool {
		f := only.Load()
		return impair.Resolution(frame) || f != nil && !(*f)(frame)
	}
	s.link = impair.RequireLink(t, s.pair, impair.Config{Seed: 1, Spare: spare, Doze: true})
	s.guest = boot(t, im, s.pair.B)
	fmt.Fprintf(&s.report, "%-18s %-7s %-8s %8s %6s  %s\n", "in the guest", "role", "link", "seconds", "repeats", "what it printed last")
	defer func() { t.Log("\n" + s.report.String()) }()
	t.Run("guest alone", s.runInGuestOnly)
	daemon := unetd.Serve(t, s.pair.A, unetd.Options{})
	s.commands = map[string]string{
		"pingpong": unetd.Command(t, "pingpong"), "rping": unetd.Command(t, "rping"), "perftest": buildPerftest(t)}
	s.socket = daemon.Socket
	for _, link := range links {
		lossy := link.rule.Loss > 0
		t.Run(link.name, func(t *testing.T) {
			only.Store(&link.only)
			for d := range impair.Direction(2) {
				s.link.Set(d, link.rule)
			}
			for _, p := range peers {
				if !link.takes(p) {
					continue
				}
				for _, unetServes := range []bool{true, false} {
					t.Run(strings.ReplaceAll(p.name(), " ", "_")+"/"+role(!unetServes), func(t *testing.T) { s.run(t, p, unetServes, link.name, lossy) })
				}
			}
			for d := range impair.Direction(2) {
				if c := s.link.Counters(d); lossy && c.LostByChance == 0 || c.Missed+c.Refused > 0 {
					t.Errorf("link, direction %d: %+v", d, c)
				}
			}
		})
	}
}

// links are the links over which the programs run.
var links = []struct {
	name  string
	rule  impair.Rule
	only  func(frame []byte) bool // frames that the rule applies to
	takes func(peer) bool
}{
	{"good", impair.Rule{}, allFrames, func(peer) bool { return true }},
	// Lost messages of UC and UD are not sent again: rdma-core's programs would wait without end.
	{"late", impair.Rule{Delay: 2 * time.Millisecond, Jitter: 5 * time.Millisecond}, allFrames, func(p peer) bool { return p.unreliable }},
	{"loss 1 %", impair.Rule{Loss: 0.01}, allFrames, func(p peer) bool { return !p.unreliable }},
	// With the connection manager the guest's timeout is not 67 ms but two seconds. With several
	// queue pairs one of the last acknowledgments is lost too often.
	{"bad", impair.Rule{Loss: 0.05, Duplicate: 0.05, Corrupt: 0.02, Reorder: 0.05, HoldBack: 2 * time.Millisecond}, rcFrames,
		func(p peer) bool { return !p.unreliable && !p.cm && p.pairs == 0 }},
}

func allFrames([]byte) bool { return true }

// rcFrames reports whether a frame is a packet of RC.
func rcFrames(frame []byte) bool {
	const udp = wire.EthernetHeaderLen + wire.IPv4HeaderLen
	const bth = udp + wire.UDPHeaderLen
	return len(frame) > bth && frame[wire.EthernetHeaderLen+9] == wire.ProtocolUDP &&
		binary.BigEndian.Uint16(frame[udp+2:]) == wire.RoCEPort && wire.Opcode(frame[bth]).Transport() == wire.TransportRC
}

// buildPerftest builds our side of perftest's programs.
func buildPerftest(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "unet-test-")
	testutil.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	testutil.Must(t, os.Chmod(dir, 0o755)) // it runs as another user than root
	if out, err := exec.Command("go", "build", "-o", dir, "github.com/unet-go/unet/test/rdmapeers/perftest").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "perftest")
}

// peer is a program of the guest, and ours.
type peer struct {
	guest, unet string // with their options
	unreliable  bool   // a loss is not repaired
	cm          bool   // the connection manager connects it
	pairs       int    // queue pairs, if there are several
}

func (p peer) name() string {
	name, options, _ := strings.Cut(p.guest, " ")
	if strings.Contains(options, "-R") {
		return name + " -R"
	}
	return name
}

// peers are run by TestProgramsOfRDMACore. The sizes are chosen so that messages have several packets.
var peers = func() []peer {
	all := []peer{
		{guest: "ibv_rc_pingpong -g 1 -n 100 -s 4096", unet: "pingpong --type rc -n 100 -s 4096"},
		{guest: "ibv_uc_pingpong -g 1 -n 100 -s 4096", unet: "pingpong --type uc -n 100 -s 4096", unreliable: true},
		{guest: "ibv_ud_pingpong -g 1 -n 100 -s 1000", unet: "pingpong --type ud -n 100 -s 1000", unreliable: true},
		{guest: "ibv_srq_pingpong -g 1 -q 4 -n 100 -s 1500", unet: "pingpong --type srq -q 4 -n 100 -s 1500", pairs: 4},
		{guest: "rping -v -V -C 10 -S 3000", unet: "rping -v -V -C 10 -S 3000", cm: true},
	}
	for _, program := range []string{"write_lat -n 100 -s 2500", "read_lat -n 100 -s 2500", "atomic_lat -n 100", "send_bw -n 100 -s 8192", "write_bw -n 100 -s 8192"} {
		name, options, _ := strings.Cut(program, " ")
		for _, cm := range []string{"", "-R "} {
			all = append(all, peer{guest: "ib_" + name + " -x 1 -F " + cm + options, unet: "perftest " + cm + options + " " + name, cm: cm != ""})
		}
	}
	return all
}()

// run runs the two programs of a peer. unetServes: ours is the server. On a link that loses packets
// one of them may succeed and the other one not: the last acknowledgment may be lost after its sender
// has ended, so that it is not repeated. Then both run again, twice at most. With several queue pairs
// this happens in every fifth run, so that one success is enough: a program ends as soon as it has
// counted its messages, and a queue pair that waits for a repetition then has lost its peer.
func (s *setup) run(t *testing.T, p peer, unetServes bool, link string, lossy bool) {
	start := time.Now()
	for again := 0; ; again++ {
		guest, clientErr, serverErr := s.runOnce(t, p, unetServes)
		one := lossy && (clientErr == nil || serverErr == nil)
		if clientErr == nil && serverErr == nil || one && p.pairs > 0 {
			s.note(p.name(), role(!unetServes), link, start, again, guest)
			return
		}
		if !one || again == 2 {
			t.Errorf("client: %v; server: %v", clientErr, serverErr)
			return
		}
		t.Logf("again: client: %v; server: %v", clientErr, serverErr)
	}
}

func role(server bool) string {
	if server {
		return "server"
	}
	return "client"
}

// runOnce runs the two programs of a peer, and returns that of the guest and how they have ended.
func (s *setup) runOnce(t *testing.T, p peer, unetServes bool) (guest program, clientErr, serverErr error) {
	inGuest := func(server bool) program {
		return inGuest(t, s.guest, withRole(strings.Fields(p.guest), server, guestAddr.Addr(), s.pair.A.Addr.Addr())...)
	}
	onUnet := func(server bool) program {
		args := withRole(strings.Fields(p.unet), server, s.pair.A.Addr.Addr(), guestAddr.Addr())
		return ownProgram{unetd.Start(t, s.pair.A, netlab.Nobody(), s.commands[args[0]], append([]string{"--socket", s.socket}, args[1:]...)...)}
	}
	serve, connect := inGuest, onUnet
	if unetServes {
		serve, connect = onUnet, inGuest
	}
	server := serve(true)
	if ours, ok := server.(ownProgram); ok {
		ours.Await(t, "listening on")
	}
	client, clientErr := dial(t, server, func() program { return connect(false) })
	serverErr = end(t, server, endTimeout)
	if unetServes {
		return client, clientErr, serverErr
	}
	return server, clientErr, serverErr
}

// withRole adds what makes a program a server, or a client of peer, to its command.
func withRole(args []string, server bool, own, peer netip.Addr) []string {
	switch rping := args[0] == "rping"; {
	case rping && server:
		return append(args, "-s", "-a", own.String())
	case rping:
		return append(args, "-c", "-a", peer.String())
	case !server:
		return append(args, peer.String())
	}
	return args
}

// runInGuestOnly runs two programs of the guest with one another, to show that the guest works without unet.
func (s *setup) runInGuestOnly(t *testing.T) {
	args := []string{"ibv_rc_pingpong", "-g", "1", "-n", "100"}
	start := time.Now()
	server := inGuest(t, s.guest, args...)
	client, err := dial(t, server, func() program { return inGuest(t, s.guest, append(args, guestAddr.Addr().String())...) })
	if err != nil {
		t.Errorf("client: %v", err)
	}
	if err := end(t, server, endTimeout); err != nil {
		t.Errorf("server: %v", err)
	}
	s.note(args[0], "both", "none", start, 0, client)
}

// note adds a line to the report.
func (s *setup) note(name, role, link string, start time.Time, again int, p program) {
	last := ""
	for line := range strings.Lines(p.Output()) {
		if strings.ContainsAny(line, "0123456789") {
			last = strings.Join(strings.Fields(line), " ")
		}
	}
	fmt.Fprintf(&s.report, "%-18s %-7s %-8s %8.1f %6d  %.100s\n", name, role, link, time.Since(start).Seconds(), again, last)
}
