package stack_test

import (
	"syscall"
	"testing"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// What waits to be received counts before a write sends anything: a window that has
// closed, a connection that is over. Nobody else polls here.
func TestWriteTakesInWhatWaits(t *testing.T) {
	for _, lend := range []bool{false, true} {
		s, link, c := newScripted(t, nil)
		l := must(s.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
		var sent []wire.TCP
		link.Filter(func(frame []byte) bool {
			if frame[12] == byte(wire.EtherTypeIPv4>>8) && frame[23] == wire.ProtocolTCP {
				sent = append(sent, append(wire.TCP(nil), frame[34:]...))
			}
			return false
		})
		peer := func(f wire.TCPFields) {
			f.SrcPort, f.DstPort = 9, 80
			link.Inject(stack.Frame{Data: segmentFrame(addrB, f)})
		}
		peer(wire.TCPFields{Seq: 1, Flags: wire.TCPSyn, Window: 8000})
		s.Poll(c.now())
		if len(sent) != 1 {
			t.Fatalf("%d segments", len(sent))
		}
		una := sent[0].Seq() + 1
		peer(wire.TCPFields{Seq: 2, Ack: una, Flags: wire.TCPAck, Window: 8000})
		s.Poll(c.now())
		conn := must(l.AcceptTCP())
		conn.SetCork(-1) // each write sends
		write := func() error {
			if lend {
				return conn.Lend(make([]byte, 100))
			}
			_, err := conn.Write(make([]byte, 100))
			return err
		}
		stack.Settle(s) // the route is known
		sent = nil
		if err := write(); err != nil || len(sent) != 1 {
			t.Fatalf("write: %v, %d segments", err, len(sent))
		}

		// The acknowledgment of it, and there is room for 10 bytes more; then none.
		sent = nil
		peer(wire.TCPFields{Seq: 2, Ack: una + 100, Flags: wire.TCPAck, Window: 10})
		peer(wire.TCPFields{Seq: 2, Ack: una + 100, Flags: wire.TCPAck, Window: 0})
		if err := write(); err != nil || len(sent) != 0 {
			t.Errorf("into a closed window: %v, %d segments", err, len(sent))
		}
		peer(wire.TCPFields{Seq: 2, Ack: una + 100, Flags: wire.TCPRst, Window: 0})
		if err := write(); bare(err) != syscall.ECONNRESET || len(sent) != 0 {
			t.Errorf("after a RST: %v, %d segments", err, len(sent))
		}
		conn.Close()
		l.Close()
	}
}
