package stack_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// describe decodes a frame with gopacket, which knows nothing of our code, and
// says in a line what it is. A frame that gopacket would have written
// differently, checksums and lengths included, is an error.
func describe(frame []byte) (string, error) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		return "", fmt.Errorf("gopacket cannot decode %x: %v", frame, e.Error())
	}
	var line []string
	say := func(format string, args ...any) { line = append(line, fmt.Sprintf(format, args...)) }
	var out []gopacket.SerializableLayer
	var ip *layers.IPv4
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			say("%s > %s", l.SrcMAC, l.DstMAC)
			out = append(out, l)
		case *layers.ARP:
			op := map[uint16]string{1: "request", 2: "reply"}[l.Operation]
			say("arp %s %v is %v, to %v %v", op, dotted(l.SourceProtAddress), colons(l.SourceHwAddress), dotted(l.DstProtAddress), colons(l.DstHwAddress))
			out = append(out, l)
		case *layers.IPv4:
			ip = l
			say("ip %v > %v ttl %d %v", l.SrcIP, l.DstIP, l.TTL, l.Flags)
			out = append(out, l)
		case *layers.UDP:
			say("udp %d > %d %q", uint16(l.SrcPort), uint16(l.DstPort), l.Payload)
			l.SetNetworkLayerForChecksum(ip)
			out = append(out, l)
		case *layers.TCP:
			say("tcp %d > %d %s %d bytes", uint16(l.SrcPort), uint16(l.DstPort), tcpFlags(l), len(l.Payload))
			l.SetNetworkLayerForChecksum(ip)
			out = append(out, l)
		case *layers.ICMPv4:
			say("icmp %v id %d seq %d %d bytes", l.TypeCode, l.Id, l.Seq, len(l.Payload))
			out = append(out, l)
			out = append(out, gopacket.Payload(l.Payload))
			return strings.Join(line, " | "), rewritten(frame, out)
		case *gopacket.Payload:
			out = append(out, l)
		}
	}
	return strings.Join(line, " | "), rewritten(frame, out)
}

func tcpFlags(t *layers.TCP) (s string) {
	for _, f := range []struct {
		set    bool
		letter string
	}{{t.SYN, "S"}, {t.FIN, "F"}, {t.RST, "R"}, {t.PSH, "P"}, {t.ACK, "A"}} {
		if f.set {
			s += f.letter
		}
	}
	return s
}

func dotted(b []byte) string { return fmt.Sprintf("%d.%d.%d.%d", b[0], b[1], b[2], b[3]) }
func colons(b []byte) string {
	return strings.ReplaceAll(fmt.Sprintf("% x", b), " ", ":")
}

func rewritten(frame []byte, out []gopacket.SerializableLayer) error {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, out...); err != nil {
		return err
	}
	b := buf.Bytes()
	if len(b) > len(frame) { // gopacket pads to 60 bytes, as the device would
		b = b[:len(frame)]
	}
	if !bytes.Equal(b, frame) {
		return fmt.Errorf("gopacket would write\n%x and not\n%x", b, frame)
	}
	return nil
}

// wiretap decodes all that a link sends and keeps the lines.
type wiretap struct {
	mu    sync.Mutex
	t     testing.TB
	lines []string
	lose  func(line string) bool
}

func tap(t testing.TB, l *memlink.Link) *wiretap {
	w := &wiretap{t: t}
	l.Filter(func(frame []byte) bool {
		line, err := describe(frame)
		if err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lines = append(w.lines, line)
		return w.lose == nil || !w.lose(line)
	})
	return w
}

// take returns what was sent since it was last called.
func (w *wiretap) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.lines
	w.lines = nil
	return lines
}

// step of a script: at a time after its start something happens, frames come in,
// and what is then sent is just Want.
type step struct {
	At   time.Duration
	Do   func()
	In   [][]byte
	Want []string
}

// runScript plays a script against a stack whose clock c is, on link l. The
// steps stand in the order of time. Between them, the stack is polled whenever
// it asked to be, so that what a timer sends belongs to the step before.
func runScript(t *testing.T, s *stack.Stack, l *memlink.Link, c *clock, steps []step) {
	t.Helper()
	w := tap(t, l)
	start := c.now()
	for i, st := range steps {
		for {
			at, ok := s.NextDeadline()
			if !ok || !at.Before(start.Add(st.At)) {
				break
			}
			c.set(at)
			s.Poll(at)
			stack.Settle(s)
		}
		if got := w.take(); len(got) > 0 {
			t.Fatalf("before step %d, by %v: sent %q", i, c.now().Sub(start), got)
		}
		c.set(start.Add(st.At))
		if st.Do != nil {
			st.Do()
			stack.Settle(s)
		}
		for _, f := range st.In {
			l.Inject(stack.Frame{Data: f})
		}
		s.Poll(c.now())
		stack.Settle(s)
		got := w.take()
		if len(got) != len(st.Want) {
			t.Fatalf("step %d at %v: sent\n%s\nwant\n%s", i, st.At, strings.Join(got, "\n"), strings.Join(st.Want, "\n"))
		}
		for k := range got {
			if !strings.Contains(got[k], st.Want[k]) {
				t.Fatalf("step %d at %v: sent\n%s\nwant\n%s", i, st.At, got[k], st.Want[k])
			}
		}
	}
}
