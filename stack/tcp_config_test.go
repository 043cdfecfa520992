package stack_test

import (
	"testing"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// The congestion control has a name, and none but those that there are.
func TestTCPCongestion(t *testing.T) {
	for name, want := range map[string]string{"": "", "cubic": "", "reno": "", "bbr": `stack: no congestion control is called "bbr"; there are cubic and reno`} {
		l, _ := memlink.Pair(memlink.Config{})
		s, err := stack.New(stack.Config{Link: l, LinkAddr: linkA, Addr: prefixA, Resolver: neighbours{}, NoCaretaker: true, TCP: stack.TCPConfig{Congestion: name}})
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			s.Close()
		}
		if got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}

func TestTCPConfig(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{TCP: stack.TCPConfig{MinRTO: 300 * time.Millisecond, TimeWait: time.Hour}})
	client, server := connect(t, a, b, stack.TCPOptions{})
	if i := client.Info(); i.RTO != i.RTT+max(300*time.Millisecond, 4*i.RTTVar) {
		t.Errorf("RTO %v with a round trip of %v", i.RTO, i.RTT)
	}
	client.CloseWrite()
	server.CloseWrite()
	eventually(t, "TIME-WAIT", func() bool { return client.Info().State == tcp.TimeWait })
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{30 * time.Minute, 1}, {2 * time.Hour, 0}} {
		b.Poll(time.Now().Add(c.after))
		if n := b.TCPUsage().TimeWaits; n != c.want {
			t.Errorf("%d in TIME-WAIT after %v", n, c.after)
		}
	}
	client.Close()
	server.Close()
}

// An acknowledgment goes out with the batch that brought the text; if it is adaptive,
// with every second full segment of a stream.
func TestTCPAdaptiveAck(t *testing.T) {
	for _, adaptive := range []bool{false, true} {
		a, b, _, _ := newPair(t, stack.Config{NoCaretaker: true, Wait: stack.WaitSpin})
		client, server := connect(t, a, b, stack.TCPOptions{})
		if adaptive {
			if err := server.SetAdaptiveAck(true); err != nil {
				t.Fatal(err)
			}
		}
		segment := make([]byte, client.Info().SendMSS)
		now := time.Now()
		for i := range 6 {
			writeAll(t, client, segment)
			a.Poll(now)
			b.Poll(now)
			want := 0
			if adaptive && i%2 == 0 {
				want = len(segment)
			}
			if n := client.Info().InFlight; n != want {
				t.Errorf("adaptive %v: %d bytes not acknowledged after segment %d, want %d", adaptive, n, i, want)
			}
		}
		client.Close()
		server.Close()
	}
}
