package rdmapeers_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/test/internal/unetd"
)

var folder = flag.String("guest", "", "`folder` for the packages and the image of the guest; without it the tests are skipped")

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	unetd.Clean()
	os.Exit(code)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// scene is a guest and a host with unet, on an impaired link.
type scene struct {
	pair   *netlab.Pair
	link   *impair.Link
	guest  *guest
	report strings.Builder
}

// TestPeers runs each program of the guest. At the end it prints a line for each.
func TestPeers(t *testing.T) {
	if *folder == "" {
		t.Skip("skipped: the guest is made of packages from the network: make test-rdma-peers")
	}
	im := openImage(t, *folder)
	s := &scene{pair: netlab.RequirePair(t, netlab.Config{Cut: true})}
	s.link = impair.RequireLink(t, s.pair, impair.Config{Seed: 1, Spare: impair.ARP, Doze: true})
	s.guest = boot(t, im, s.pair.B)
	fmt.Fprintf(&s.report, "%-28s %-8s %-8s %9s  %s\n", "program in the guest", "its role", "link", "seconds", "what it printed last")
	defer func() { t.Log("\n" + s.report.String()) }()
	t.Run("guest alone", s.alone)
}

// alone has two programs of the guest speak with one another: the guest works without unet.
func (s *scene) alone(t *testing.T) {
	args := []string{"ibv_rc_pingpong", "-g", "1", "-n", "100", "-c"}
	start := time.Now()
	server := s.guest.start(t, args...)
	client := s.guest.dial(t, server, append(args, guestAddr.Addr().String())...)
	for _, p := range []*process{server, client} {
		if err := p.end(t); err != nil {
			t.Errorf("%s: %v", p.args[0], err)
		}
	}
	s.note(client, "both", "none", start)
}

// note adds a line to the report.
func (s *scene) note(p *process, role, link string, start time.Time) {
	out := strings.Split(strings.TrimRight(p.output(), "-\n"), "\n")
	fmt.Fprintf(&s.report, "%-28s %-8s %-8s %9.1f  %s\n", p.args[0], role, link, time.Since(start).Seconds(), strings.Join(strings.Fields(out[len(out)-1]), " "))
}
