package stack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// senderTest is a stack with one peer, B, whose frames the test makes.
type senderTest struct {
	t        *testing.T
	v6       bool
	s        *stack.Stack
	l        *memlink.Link
	service  *stoppableService
	a, b     netip.Addr
	listener *stack.TCPListener
	c        *stack.TCPConn
	u        *stack.UDPConn
	port     *testHandler
	ports    [2]uint16 // of the connection, ours and the peer's
	seq, ack uint32    // what the peer sends and acknowledges next
	result   chan error

	mu   sync.Mutex
	sent []sentPacket
}

// sentPacket is a packet that the stack has sent.
type sentPacket struct {
	to       wire.LinkAddr
	protocol uint8
	fragment bool
	payload  []byte
	tcp      wire.TCP
}

func newSenderTest(t *testing.T, v6, owned bool) *senderTest {
	l, _ := memlink.Pair(memlink.Config{})
	e := &senderTest{t: t, v6: v6, l: l, service: newStoppableService(), result: make(chan error, 10), seq: 1000}
	e.s = newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: append([]netip.Prefix{prefixA}, prefixes6A[:1]...), OwnedAddress: owned, Resolver: e.service, Wait: endpoint.WaitBlock})
	e.a, e.b = prefixA.Addr(), prefixB.Addr()
	if v6 {
		e.a, e.b = prefixes6A[0].Addr(), prefixes6B[0].Addr()
	}
	l.Filter(func(frame []byte) bool {
		p := sentPacket{to: wire.LinkAddr(frame[:6])}
		if v6 {
			var ip wire.IPv6
			if err := ip.Parse(frame[wire.EthernetHeaderLen:]); err != nil {
				t.Error(err)
			}
			p.protocol, p.fragment, p.payload = ip.Protocol, ip.HasFragment, bytes.Clone(ip.Payload)
		} else {
			var ip wire.IPv4
			if err := ip.Parse(frame[wire.EthernetHeaderLen:]); err != nil {
				t.Error(err)
			}
			p.protocol, p.fragment, p.payload = ip.Protocol, ip.Fragment != 0, bytes.Clone(ip.Payload)
		}
		if p.protocol == wire.ProtocolTCP {
			if err := p.tcp.Parse(p.payload); err != nil {
				t.Error(err)
			}
		}
		e.mu.Lock()
		e.sent = append(e.sent, p)
		e.mu.Unlock()
		return false
	})
	return e
}

// inject makes a packet from B arrive.
func (e *senderTest) inject(protocol uint8, payload []byte) {
	if e.v6 {
		e.l.Inject(stack.Frame{Data: ip6Frame(wire.IPv6Fields{Protocol: protocol}, payload)})
	} else {
		e.l.Inject(stack.Frame{Data: ipFrame(wire.IPv4Fields{Protocol: protocol}, payload)})
	}
	time.Sleep(10 * time.Millisecond) // until the caretaker polls
}

// segment makes a segment of the peer arrive, with this sequence number.
func (e *senderTest) segment(flags wire.TCPFlags, seq uint32, window uint16, data string) {
	b := append(make([]byte, wire.TCPHeaderLen), data...)
	f := wire.TCPFields{SrcPort: e.ports[1], DstPort: e.ports[0], Seq: seq, Ack: e.ack, Flags: flags, Window: window}
	if flags == wire.TCPSyn {
		f.Ack = 0
	}
	src, dst := wire.AddrFrom(e.b), wire.AddrFrom(e.a)
	wire.PutTCP(b, &f, wire.TCPHeaderLen, wire.Sum(b[wire.TCPHeaderLen:], wire.PseudoHeader(src, dst, wire.ProtocolTCP, uint16(len(b)))))
	e.inject(wire.ProtocolTCP, b)
}

// next is segment for the next data, or FIN, of the peer.
func (e *senderTest) next(flags wire.TCPFlags, data string) {
	e.segment(flags, e.seq, 8000, data)
	if e.seq += uint32(len(data)); flags&wire.TCPFin != 0 {
		e.seq++
	}
}

func (e *senderTest) datagram(port uint16) {
	b := make([]byte, wire.UDPHeaderLen)
	wire.PutUDPCopy(b, &wire.UDPFlow{Src: wire.AddrFrom(e.b), Dst: wire.AddrFrom(e.a), SrcPort: 9, DstPort: port}, nil)
	e.inject(wire.ProtocolUDP, b)
}

// take returns what was sent since it was last called.
func (e *senderTest) take() []sentPacket {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	sent := e.sent
	e.sent = nil
	return sent
}

// wait reports whether a packet that is looked for is sent within d, and to B.
func (e *senderTest) wait(d time.Duration, is func(*sentPacket) bool) bool {
	e.t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		for _, p := range e.take() {
			if is(&p) {
				if p.to != linkB {
					e.t.Errorf("sent to %v", p.to)
				}
				return true
			}
		}
		for _, what := range stack.WaitForEver(e.s) {
			e.t.Error(what)
		}
		if !time.Now().Before(end) || e.t.Failed() {
			return false
		}
	}
}

func (e *senderTest) local(port uint16) netip.AddrPort  { return netip.AddrPortFrom(e.a, port) }
func (e *senderTest) remote(port uint16) netip.AddrPort { return netip.AddrPortFrom(e.b, port) }

// syn opens a listener, and a SYN of the peer arrives.
func (e *senderTest) syn() {
	e.listener = testutil.Value(e.s.ListenTCP(e.local(80), stack.TCPListenOptions{}))
	e.ports = [2]uint16{80, 9}
	e.segment(wire.TCPSyn, e.seq, 8000, "")
	e.seq++
	e.learn()
}

// learn takes the number of our SYN.
func (e *senderTest) learn() {
	e.t.Helper()
	sent := e.take()
	if len(sent) != 1 || sent[0].tcp.Flags&wire.TCPSyn == 0 {
		e.t.Fatalf("no SYN: %+v", sent)
	}
	e.ack = sent[0].tcp.Seq + 1
}

func (e *senderTest) establishUnaccepted() {
	e.syn()
	e.segment(wire.TCPAck, e.seq, 8000, "")
}

func (e *senderTest) establish() {
	e.establishUnaccepted()
	e.c = testutil.Value(e.listener.AcceptTCP())
}

func (e *senderTest) dial() {
	go func() {
		ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Minute)
		defer cancel()
		_, err := e.s.DialTCP(ctx, e.local(7), e.remote(9), stack.TCPOptions{})
		e.result <- err
	}()
	e.ports = [2]uint16{7, 9}
	synctest.Wait()
}

func (e *senderTest) write(s string) {
	_, err := e.c.Write([]byte(s))
	e.result <- err
}

// senderKind is how senders of a kind behave if the route is not known.
type senderKind uint8

const (
	answers         senderKind = iota // to the MAC address of what they answer
	connects                          // waits, and fails with the route
	transmits                         // waits; what is lost is sent again
	transmitsOnce                     // waits; what is lost is not sent again
	acknowledges                      // waits; the peer sends again
	sendsDatagrams                    // held; errors
	sendsFragments                    // the sender waits; errors
	sendsFromPort                     // held
	sendsUnattended                   // held; a socket that is not connected
)

func isTCP(flags wire.TCPFlags, data int) func(*sentPacket) bool {
	const mask = wire.TCPSyn | wire.TCPFin | wire.TCPRst | wire.TCPAck
	return func(p *sentPacket) bool {
		return p.protocol == wire.ProtocolTCP && p.tcp.Flags&mask == flags && len(p.tcp.Payload) == data
	}
}

func isProtocol(protocol uint8) func(*sentPacket) bool {
	return func(p *sentPacket) bool { return p.protocol == protocol && !p.fragment }
}

const (
	synAck = wire.TCPSyn | wire.TCPAck
	finAck = wire.TCPFin | wire.TCPAck
)

// backOff lets the retransmission timer back off until its next expiry finds the route unused for long.
func (e *senderTest) backOff() { time.Sleep(3 * time.Second) }

// senders are all that send packets. prepare is called while the route is known, and start when it is in the
// state to be tested; then sent is to be sent, at once or by a timer.
var senders = []struct {
	name     string
	kind     senderKind
	onlyOwn  bool // only at an owned address
	only4    bool
	prepare  func(*senderTest)
	start    func(*senderTest)
	expected func(*sentPacket) bool
}{
	{name: "RST without a connection", kind: answers, prepare: func(e *senderTest) { e.ports = [2]uint16{81, 9} },
		start: func(e *senderTest) { e.segment(wire.TCPSyn, 1, 8000, "") }, expected: isTCP(wire.TCPRst|wire.TCPAck, 0)},
	{name: "SYN,ACK", kind: answers, start: func(e *senderTest) {
		e.listener = testutil.Value(e.s.ListenTCP(e.local(80), stack.TCPListenOptions{}))
		e.ports = [2]uint16{80, 9}
		e.segment(wire.TCPSyn, e.seq, 8000, "")
	}, expected: isTCP(synAck, 0)},
	{name: "SYN,ACK again", kind: answers, prepare: (*senderTest).syn, expected: isTCP(synAck, 0)},
	{name: "SYN,ACK, third", kind: answers, prepare: func(e *senderTest) { e.syn(); time.Sleep(1500 * time.Millisecond) }, expected: isTCP(synAck, 0)},
	{name: "SYN", kind: connects, start: (*senderTest).dial, expected: isTCP(wire.TCPSyn, 0)},
	{name: "SYN again", kind: connects, prepare: (*senderTest).dial, expected: isTCP(wire.TCPSyn, 0)},
	{name: "SYN,ACK of a simultaneous open", kind: connects, prepare: func(e *senderTest) {
		e.dial()
		e.learn()
		e.segment(wire.TCPSyn, e.seq, 8000, "")
	}, expected: func(p *sentPacket) bool { return p.tcp.Flags&wire.TCPSyn != 0 }}, // a SYN after it has failed
	{name: "data", kind: transmits, prepare: (*senderTest).establish, start: func(e *senderTest) { e.write("data") }, expected: isTCP(wire.TCPAck, 4)},
	{name: "data again", kind: transmits, prepare: func(e *senderTest) { e.establish(); e.write("data"); e.backOff() }, expected: isTCP(wire.TCPAck, 4)},
	{name: "ACK", kind: acknowledges, prepare: (*senderTest).establish, start: func(e *senderTest) { e.next(wire.TCPAck, "news") }, expected: isTCP(wire.TCPAck, 0)},
	{name: "ACK before Accept", kind: acknowledges, prepare: (*senderTest).establishUnaccepted, start: func(e *senderTest) { e.next(wire.TCPAck, "news") }, expected: isTCP(wire.TCPAck, 0)},
	{name: "challenge ACK", kind: acknowledges, prepare: (*senderTest).establish, start: func(e *senderTest) { e.segment(wire.TCPSyn, e.seq+7, 8000, "") }, expected: isTCP(wire.TCPAck, 0)},
	{name: "FIN", kind: transmits, prepare: (*senderTest).establish, start: func(e *senderTest) { e.c.CloseWrite() }, expected: isTCP(finAck, 0)},
	{name: "FIN-WAIT-1", kind: transmits, prepare: func(e *senderTest) { e.establish(); e.c.CloseWrite(); e.backOff() }, expected: isTCP(finAck, 0)},
	{name: "ACK in FIN-WAIT-2", kind: acknowledges, prepare: func(e *senderTest) {
		e.establish()
		e.c.CloseWrite()
		e.ack++
		e.segment(wire.TCPAck, e.seq, 8000, "")
	}, start: func(e *senderTest) { e.next(wire.TCPAck, "news") }, expected: isTCP(wire.TCPAck, 0)},
	{name: "ACK of a FIN", kind: acknowledges, prepare: (*senderTest).establish, start: func(e *senderTest) {
		e.segment(finAck, e.seq, 8000, "")
	}, expected: isTCP(wire.TCPAck, 0)},
	{name: "FIN in CLOSE-WAIT", kind: transmits, prepare: func(e *senderTest) { e.establish(); e.next(finAck, "") },
		start: func(e *senderTest) { e.c.Close() }, expected: isTCP(finAck, 0)},
	{name: "LAST-ACK", kind: transmits, prepare: func(e *senderTest) { e.establish(); e.next(finAck, ""); e.c.Close(); e.backOff() }, expected: isTCP(finAck, 0)},
	{name: "CLOSING", kind: transmits, prepare: func(e *senderTest) { e.establish(); e.c.CloseWrite(); e.next(finAck, ""); e.backOff() }, expected: isTCP(finAck, 0)},
	{name: "TIME-WAIT", kind: answers, prepare: func(e *senderTest) {
		e.establish()
		e.c.Close()
		e.ack++
		e.segment(finAck, e.seq, 8000, "")
	}, start: func(e *senderTest) { e.segment(finAck, e.seq, 8000, "") }, expected: isTCP(wire.TCPAck, 0)},
	{name: "RST", kind: transmitsOnce, prepare: (*senderTest).establish, start: func(e *senderTest) { e.c.SetLinger(0); e.c.Close() }, expected: isTCP(wire.TCPRst|wire.TCPAck, 0)},
	{name: "keepalive", kind: transmits, prepare: func(e *senderTest) {
		e.establish()
		e.c.SetKeepAliveConfig(everySecond)
	}, expected: isTCP(wire.TCPAck, 0)},
	{name: "zero-window probe", kind: transmits, prepare: func(e *senderTest) {
		e.establish()
		e.segment(wire.TCPAck, e.seq, 0, "")
		e.write("data")
		e.backOff()
	}, expected: func(p *sentPacket) bool { return p.protocol == wire.ProtocolTCP && len(p.tcp.Payload) <= 1 }},
	{name: "datagram", kind: sendsDatagrams, prepare: func(e *senderTest) { e.u = testutil.Value(e.s.DialUDP(e.local(7), e.remote(9), stack.UDPOptions{})) },
		start: func(e *senderTest) { e.result <- udpSend(e.u, nil) }, expected: isProtocol(wire.ProtocolUDP)},
	{name: "datagram of a server", kind: sendsUnattended, prepare: func(e *senderTest) { e.u = testutil.Value(e.s.ListenUDP(e.local(7), stack.UDPOptions{})) },
		start: func(e *senderTest) { e.result <- udpSendTo(e.u, nil, e.remote(9)) }, expected: isProtocol(wire.ProtocolUDP)},
	{name: "fragments", kind: sendsFragments, onlyOwn: true, prepare: func(e *senderTest) { e.u = testutil.Value(e.s.DialUDP(e.local(7), e.remote(9), stack.UDPOptions{})) },
		start:    func(e *senderTest) { go func() { e.result <- udpSend(e.u, make([]byte, 3000)) }() },
		expected: func(p *sentPacket) bool { return p.fragment }},
	{name: "packet of a port", kind: sendsFromPort, only4: true, prepare: func(e *senderTest) { e.port = openPort(e.t, e.s, "10.0.0.1:4791") },
		start:    func(e *senderTest) { e.port.send(ipDatagram(addrA, addrB, 4791, 4791, nil)) },
		expected: isProtocol(wire.ProtocolUDP)},
	{name: "ICMP error", kind: answers, onlyOwn: true, start: func(e *senderTest) { e.datagram(99) }, expected: func(p *sentPacket) bool {
		return p.protocol == wire.ProtocolICMP || p.protocol == wire.ProtocolICMPv6
	}},
	{name: "echo reply", kind: answers, onlyOwn: true, start: func(e *senderTest) {
		if e.v6 {
			e.inject(wire.ProtocolICMPv6, echo6(globalB, globalA, "x"))
		} else {
			e.l.Inject(stack.Frame{Data: echoFrame("x")})
		}
	}, expected: func(p *sentPacket) bool { return p.protocol == wire.ProtocolICMP || p.protocol == wire.ProtocolICMPv6 }},
}

// everySecond is a keepalive of a second.
var everySecond = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 100}

// resolve makes the route to B ready.
func (e *senderTest) resolve() {
	u := testutil.Value(e.s.ListenUDP(netip.AddrPort{}, stack.UDPOptions{}))
	testutil.Value(u.WriteToUDPAddrPort(nil, e.remote(9999)))
	synctest.Wait()
	u.Close()
	e.take()
}

func (e *senderTest) wantState(want string) {
	e.t.Helper()
	if got := stack.RouteState(e.s, e.b); got != want {
		e.t.Fatalf("the route is %s, want %s", got, want)
	}
}

// wantErrors compares the errors of the calls of the application.
func (e *senderTest) wantErrors(want ...error) {
	e.t.Helper()
	synctest.Wait()
	for len(e.result) > 0 {
		if err := <-e.result; !slicesContains(want, err) {
			e.t.Errorf("a call returned %v, want one of %v", err, want)
		}
	}
}

func slicesContains(want []error, err error) bool {
	for _, w := range want {
		if w == nil && err == nil || w != nil && errors.Is(err, w) {
			return true
		}
	}
	return false
}

// Each sender meets each state of a route. A packet is sent at once, or when the route is known; or its sender
// is told, or it is counted, and nothing waits for ever.
func TestEverySenderInEveryStateOfARoute(t *testing.T) {
	const soon, longest = 1200 * time.Millisecond, 3 * time.Minute
	unreachable := func(netip.Addr) (stack.Route, error) { return stack.Route{}, syscall.EHOSTUNREACH }
	lost := func(e *senderTest, k senderKind) {
		e.t.Helper()
		got := counters(e.s)
		switch k {
		case connects:
			if len(e.result) == 0 {
				e.t.Error("the dial goes on")
			}
			e.wantErrors(syscall.EHOSTUNREACH)
		case transmits, transmitsOnce, acknowledges:
			if got["segments_lost"] == 0 {
				e.t.Errorf("not counted: %v", got)
			}
			if e.c != nil && k == transmits && e.c.Info().SoftErr != syscall.EHOSTUNREACH {
				e.t.Errorf("the connection does not say why: %v", e.c.Info().SoftErr)
			}
		case sendsFromPort:
			if got["port_lost"]+got["held_dropped"] == 0 {
				e.t.Errorf("not counted: %v", got)
			}
		}
	}
	for _, sd := range senders {
		start := func(e *senderTest) {
			if sd.start != nil {
				sd.start(e)
			}
		}
		// restart is called when the route can be found again: what was lost for good is sent again by
		// the application or the peer.
		restart := func(e *senderTest) {
			switch sd.kind {
			case connects:
				e.dial()
			case acknowledges:
				e.segment(wire.TCPAck, e.seq-4, 8000, "news")
			case sendsDatagrams, sendsFragments, sendsFromPort, sendsUnattended:
				start(e)
			}
		}
		now := func(e *senderTest) {
			e.t.Helper()
			start(e)
			if !e.wait(4*time.Second, sd.expected) {
				e.t.Errorf("not sent: %v", counters(e.s))
			}
		}
		states := []struct {
			name string
			run  func(e *senderTest)
		}{
			{"ready", now},
			{"stale", func(e *senderTest) {
				time.Sleep(600 * time.Millisecond)
				e.wantState("stale")
				now(e)
			}},
			{"unknown", func(e *senderTest) {
				stack.ForgetRoutes(e.s)
				now(e)
			}},
			{"answered late", func(e *senderTest) {
				e.service.stop()
				stack.ForgetRoutes(e.s)
				start(e)
				if sent := e.wait(800*time.Millisecond, sd.expected); sent && sd.kind != answers {
					e.t.Error("sent without a route")
				} else if sent {
					e.service.start()
					return
				}
				e.service.start()
				if !e.wait(3*time.Second, sd.expected) {
					e.t.Error("not sent when the route was known")
				}
			}},
			{"failed", func(e *senderTest) {
				e.service.setAnswer(unreachable)
				e.s.Invalidate(netip.Addr{})
				synctest.Wait()
				e.wantState("failed")
				start(e)
				if sent := e.wait(4*time.Second, sd.expected); sent != (sd.kind == answers) {
					e.t.Errorf("sent: %t", sent)
				}
				if sd.kind == answers {
					return
				}
				switch sd.kind {
				case sendsDatagrams, sendsUnattended, sendsFragments:
					e.wantErrors(syscall.EHOSTUNREACH)
				default:
					lost(e, sd.kind)
				}
				e.service.setAnswer(answerWith(stack.Route{LinkAddr: linkB}))
				if sd.kind == transmitsOnce {
					return
				}
				time.Sleep(1100 * time.Millisecond) // the failure is forgotten
				if restart(e); !e.wait(longest, sd.expected) {
					e.t.Error("not sent when the peer was reachable again")
				}
			}},
			{"never answered", func(e *senderTest) {
				e.service.stop()
				stack.ForgetRoutes(e.s)
				start(e)
				sent := e.wait(30*time.Second, sd.expected)
				if sent != (sd.kind == answers) {
					e.t.Errorf("sent: %t", sent)
				}
				if sent {
					e.service.start()
					return
				}
				switch sd.kind {
				case sendsDatagrams:
					e.wantErrors(nil)
					e.u.SetReadDeadline(time.Now())
					if _, err := udpRecv(e.u, make([]byte, 1)); !errors.Is(err, syscall.EHOSTUNREACH) {
						e.t.Errorf("the pending error is %v", err)
					}
				case sendsUnattended:
					e.wantErrors(nil)
				case sendsFragments:
					e.wantErrors(syscall.ENOBUFS)
				default:
					lost(e, sd.kind)
				}
				if n := stack.Held(e.s); n > 0 {
					e.t.Errorf("%d packets are held after 30 s", n)
				}
				e.service.start()
				if sd.kind == transmitsOnce {
					return
				}
				time.Sleep(1100 * time.Millisecond)
				if restart(e); !e.wait(longest, sd.expected) {
					e.t.Error("not sent when the route was known")
				}
			}},
			{"service gone, known", func(e *senderTest) {
				time.Sleep(600 * time.Millisecond)
				e.service.stop()
				e.s.SetRouteService(false)
				now(e)
				e.s.SetRouteService(true)
				e.service.start()
			}},
			{"service gone", func(e *senderTest) {
				e.service.stop()
				e.s.SetRouteService(false)
				stack.ForgetRoutes(e.s)
				if e.u != nil {
					e.datagram(7) // which the socket may answer
				}
				start(e)
				at := e.wait(3*time.Second, sd.expected)
				var want bool
				switch sd.kind {
				case answers, transmits, transmitsOnce, acknowledges, sendsDatagrams, sendsUnattended, sendsFragments:
					want = true
				case connects:
					want = sd.name != "SYN" // otherwise it has sent before
				}
				if at != want {
					e.t.Errorf("sent while the service is gone: %t, want %t", at, want)
				}
				e.service.start()
				e.s.SetRouteService(true)
				if !at && !e.wait(soon, sd.expected) {
					e.t.Error("not sent when the service was back")
				}
			}},
		}
		for _, st := range states {
			for _, v6 := range []bool{false, true} {
				for _, owned := range []bool{false, true} {
					if sd.onlyOwn && !owned || sd.only4 && v6 {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/IPv6 %t/owned %t", sd.name, st.name, v6, owned), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							e := newSenderTest(t, v6, owned)
							defer e.s.Close()
							e.resolve()
							if sd.prepare != nil {
								sd.prepare(e)
							}
							e.resolve()
							st.run(e)
						})
					})
				}
			}
		}
	}
}

// A peer whose route is known and unused does not get our SYN,ACK. It is sent again after 1 s and 3 s, at
// once for a second SYN, and the peer's data is acknowledged.
func TestSYNACKToAKnownPeerIsSentAgain(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, owned := range []bool{false, true} {
			t.Run(fmt.Sprintf("IPv6 %t/owned %t", v6, owned), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newSenderTest(t, v6, owned)
					defer e.s.Close()
					e.resolve()
					time.Sleep(600 * time.Millisecond)
					e.wantState("stale")
					e.syn()
					is := isTCP(synAck, 0)
					for _, after := range []time.Duration{time.Second, 2 * time.Second} {
						start := time.Now()
						if !e.wait(2*after, is) || time.Since(start) > after+30*time.Millisecond || time.Since(start) < after-30*time.Millisecond {
							t.Errorf("SYN,ACK after %v, want %v", time.Since(start), after)
						}
					}
					e.segment(wire.TCPSyn, e.seq-1, 8000, "")
					if !e.wait(50*time.Millisecond, is) {
						t.Error("the second SYN is not answered")
					}
					e.segment(wire.TCPAck, e.seq, 8000, "data")
					if !e.wait(50*time.Millisecond, func(p *sentPacket) bool { return isTCP(wire.TCPAck, 0)(p) && p.tcp.Ack == e.seq+4 }) {
						t.Error("the data is not acknowledged")
					}
				})
			})
		}
	}
}
