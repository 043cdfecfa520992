package stack_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// Strangers flood a stack with SYNs, RSTs and ACKs, on real frames, while a connection
// of it receives: every byte arrives, and what the flood takes is bounded.
func TestTCPUnderAttack(t *testing.T) {
	const limit = 1 << 20
	a, b, la, _ := newPair(t, stack.Config{TCP: stack.TCPConfig{Memory: limit}})
	client, server := connect(t, a, b, stack.TCPOptions{})
	defer client.Close()
	defer server.Close()
	l, err := a.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		port := addrPort(client.LocalAddr()).Port()
		for i := uint32(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			stranger := [4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)}
			for _, f := range []struct {
				src    [4]byte
				fields wire.TCPFields
			}{
				{stranger, wire.TCPFields{SrcPort: 9, DstPort: 80, Seq: i, Flags: wire.TCPSyn, Window: 1000}},
				{stranger, wire.TCPFields{SrcPort: 9, DstPort: 80, Seq: i, Ack: i, Flags: wire.TCPAck}},
				{addrB, wire.TCPFields{SrcPort: port, DstPort: addrPort(server.LocalAddr()).Port(), Seq: i << 12, Flags: wire.TCPRst}},
				{addrB, wire.TCPFields{SrcPort: port, DstPort: addrPort(server.LocalAddr()).Port(), Seq: i << 12, Flags: wire.TCPSyn}},
				{addrA, wire.TCPFields{SrcPort: 80, DstPort: 80, Seq: i, Flags: wire.TCPSyn}},
			} {
				la.Inject(stack.Frame{Data: segmentFrame(f.src, f.fields)})
			}
		}
	}()

	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	go func() {
		writeAll(t, client, want)
		client.CloseWrite()
	}()
	got, err := io.ReadAll(server)
	if !bytes.Equal(got, want) || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	close(stop)
	<-stopped
	u := a.TCPUsage()
	if u.Connections > 1+tcp.DefaultSynQueue || u.Memory > limit {
		t.Errorf("%+v", u)
	}
	c := counters(a)
	if c["tcp_syns_received"] == 0 || c["tcp_resets_ignored"]+c["tcp_no_timestamp"] == 0 {
		t.Errorf("the flood is not in the counters: %v", c)
	}
}
