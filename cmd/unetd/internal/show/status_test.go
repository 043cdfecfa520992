//go:build linux

package show

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// Columns are aligned, and no line is longer than the terminal is wide, from 20 columns on. Narrow text has the
// same values as wide text.
func TestStatusText(t *testing.T) {
	free := uint32(2040)
	in, bytes := uint64(12), uint64(3456)
	all := []endpoint.Status{{
		Info: endpoint.Info{ID: 7, UID: 4_000_000_000, PID: 4711, Device: "unet7", Mode: "tcx", SegmentBytes: 8 << 20, Leased: true, TagsTotal: 1, Paths: 2,
			Tags: []endpoint.Tag{endpoint.TCPTag(netip.MustParseAddrPort("[fd00::1]:80"))}},
		Command: "a server", FillQueue: &free, Port: &endpoint.PortCount{FramesIn: &in, BytesIn: &bytes, FramesOut: 4, BytesOut: 5, DroppedIn: 6},
		Published: &endpoint.Published{Sent: 1, Received: 20, ReceiveQueue: 3, ReceiveQueueFull: 9, PathSent: 4_000_000, PathReceived: 5_000_000, PathDropped: 7},
		Sockets: []endpoint.Socket{
			{Protocol: "tcp", State: "listening", Local: netip.MustParseAddrPort("[::]:80"), SendQueue: 128},
			{Protocol: "tcp", State: "established", Local: netip.MustParseAddrPort("[fd00::1]:80"), Remote: netip.MustParseAddrPort("[fd00:1111:2222:3333:4444:5555:6666:7777]:50000"),
				RTT: 6420, RTTVar: 310, Window: 14480, Retransmitted: 2, BytesIn: 1000, BytesAcked: 1 << 40},
			{Protocol: "udp", State: "unconnected", Local: netip.MustParseAddrPort("10.0.0.1:53"), Received: 5, Drops: 1},
		},
	}}
	text := func(o StatusOptions, before []endpoint.Status) string {
		t.Helper()
		o.Numeric = true
		var b strings.Builder
		if err := o.Text(&b, o.Choose(all, before, 2*time.Second)); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	earlier := []endpoint.Status{{Info: endpoint.Info{ID: 7}, Published: &endpoint.Published{Received: 10, Sent: 5, PathSent: 3_999_000, PathReceived: 4_999_998}, Port: &endpoint.PortCount{FramesOut: 2}}}
	want := `endpoint 7  user 4000000000  pid 4711(a server)  port unet7  tcx  8MiB  leased
  tags     tcp:[fd00::1]:80
  queues   free 2040  receive 3  send 0
  frames   in 20  out 1  by the port in 12 (3456 bytes)  by the port out 4 (5 bytes)
  memory   2 paths  in 5000000  out 4000000
  rates    in 5/s  out 0/s  by the port out 1/s  by memory in 1/s  out 500/s
  dropped  6 backlog full, 9 receive queue full, 7 by memory paths
  PROTO  STATE        RECV-Q  SEND-Q  LOCAL         REMOTE                                           RTT/VAR       CWND   RETRANS  IN    OUT            DROPS
  tcp    listening    0       128     [::]:80       *                                                -             -      -        -     -              -
  tcp    established  0       0       [fd00::1]:80  [fd00:1111:2222:3333:4444:5555:6666:7777]:50000  6.42us/310ns  14480  2        1000  1099511627776  -
  udp    unconnected  0       0       10.0.0.1:53   *                                                -             -      -        5     0              1
`
	if got := text(StatusOptions{}, earlier); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, width := range []int{20, 21, 33, 80, 120} {
		got := text(StatusOptions{Width: width}, nil)
		for line := range strings.Lines(got) {
			if n := len(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("%d columns: %q has %d", width, line, n)
			}
		}
		joined := strings.Join(strings.Fields(got), "")
		for _, part := range []string{"tcp:[fd00::1]:80", "[fd00:1111:2222:3333:4444:5555:6666:7777]:50000", "6.42us/310ns", "1099511627776", "9receivequeuefull"} {
			if !strings.Contains(joined, part) {
				t.Errorf("%d columns: no %s:\n%s", width, part, got)
			}
		}
	}
	if colored := text(StatusOptions{Color: true}, nil); !strings.Contains(colored, "\x1b[1mendpoint 7") {
		t.Errorf("%q", colored)
	}
	if plain := text(StatusOptions{}, nil); strings.Contains(plain, "\x1b") {
		t.Errorf("%q", plain)
	}
}

// A duration is written with three digits in the largest unit of which it has at least one.
func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		310: "310ns", 6_420: "6.42us", 6_426: "6.43us", 12_300_000: "12.3ms", 999_499: "999us", 999_999: "1ms", 999_999_999: "1s", 59_960_000_000: "1m0s", 1234 * time.Second: "20m30s",
	} {
		if got := short(d); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
}

// The options choose sockets as those of ss do.
func TestStatusOptions(t *testing.T) {
	at := netip.MustParseAddrPort
	all := []endpoint.Status{
		{Info: endpoint.Info{ID: 1, Tags: []endpoint.Tag{endpoint.TCPTag(at("10.0.0.1:80"))}}, Sockets: []endpoint.Socket{
			{Record: 1, Protocol: "tcp", State: "listening", Local: at("10.0.0.1:80")},
			{Record: 2, Protocol: "tcp", State: "established", Local: at("10.0.0.1:80"), Remote: at("10.0.0.2:1")},
			{Record: 3, Protocol: "udp", State: "unconnected", Local: at("10.0.0.1:80")},
		}},
		{Info: endpoint.Info{ID: 2, Tags: []endpoint.Tag{endpoint.UDPTag(at("10.0.0.1:81"))}}},
		{Info: endpoint.Info{ID: 3}},
	}
	for _, c := range []struct {
		options  string
		endpoint uint64
		want     string
	}{
		{"", 0, "1: 1 2 3; 2:; 3:"},
		{"t", 0, "1: 1 2"},
		{"u", 0, "1: 3"},
		{"tu", 0, "1: 1 2 3"},
		{"l", 0, "1: 1 3"},
		{"tl", 0, "1: 1"},
		{"", 3, "3:"},
		{"t", 1, "1: 1 2"},
		{"t", 2, ""},
		{"", 4, ""},
	} {
		o := StatusOptions{Endpoint: c.endpoint, Numeric: true, TCP: strings.Contains(c.options, "t"), UDP: strings.Contains(c.options, "u"), Listen: strings.Contains(c.options, "l")}
		var parts []string
		for _, s := range o.Choose(all, nil, 0) {
			part := string(rune('0'+s.ID)) + ":"
			for _, k := range s.Sockets {
				part += " " + string(rune('0'+k.Record))
			}
			parts = append(parts, part)
		}
		if got := strings.Join(parts, "; "); got != c.want {
			t.Errorf("-%s %d: %q, want %q", c.options, c.endpoint, got, c.want)
		}
	}
}
