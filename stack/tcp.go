package stack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp"
)

// TCPOptions of a connection, or of all that a listener accepts. The zero value
// works.
type TCPOptions struct {
	Network string // in the errors of the socket: "tcp4" or "tcp6"; empty: "tcp"

	SendBuffer    int // bytes; 0: it grows with the path's bandwidth-delay product
	ReceiveBuffer int // bytes; 0: likewise
	KeepAlive     tcp.KeepAlive

	// Released is called once when the local port is free again: when the connection that
	// was dialled, or the listener and all connections that it has accepted, have been closed
	// and have ended. It is not called for a dial or a listen that fails. It must be quick and
	// must not call the stack.
	Released func()
}

// ErrNoPort is the error of [Stack.DialTCP] if Config.TCPPorts have no port from which
// there is no connection to the remote address. It is an EADDRNOTAVAIL.
var ErrNoPort = fmt.Errorf("%w: each local port has a connection to the remote address", syscall.EADDRNOTAVAIL)

// TCPPorts are the local ports for connections from a stack that shares its address. Its
// methods are called under the stack's lock: they must be quick and must not call the
// stack.
type TCPPorts interface {
	// Choose calls pick with the available ports of a local address and returns the port that pick has chosen,
	// which a connection then uses; 0: there is none.
	Choose(local netip.Addr, pick func(from []tcp.PortBlock) uint16) uint16
	// Release is called once for each port that Choose has returned, when the connection
	// has been closed and has ended.
	Release(local netip.Addr, port uint16)
}

// TCPUsage is the number of TCP connections of a stack and their memory.
type TCPUsage struct {
	Connections int // those in TIME-WAIT left out
	TimeWaits   int
	Memory      int // bytes of buffers
}

// TCPUsage returns the present usage.
func (s *Stack) TCPUsage() TCPUsage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return TCPUsage{s.tcp.Len(), s.tcp.TimeWaits(), s.tcp.MemoryInUse()}
}

// portUse counts the users of a local port: a listener and connections.
type portUse struct {
	users    int
	released func()
}

func (p *portUse) leave() {
	if p.users--; p.users == 0 && p.released != nil {
		p.released()
	}
}

// TCPConn is a TCP connection in this process. It is a net.Conn and behaves as
// package net's *TCPConn: deadlines, half-close, addresses, and the errors, among them
// syscall.ECONNREFUSED, ECONNRESET, EPIPE, ETIMEDOUT and EHOSTUNREACH. Its methods may
// be called from any goroutine.
//
// Read and Write do not allocate.
type TCPConn struct {
	stack *Stack
	conn  *tcp.Conn
	route *route // to the peer; nil: not looked up yet
	mtu   int    // of the route, as the engine has it
	loop  bool   // the peer is in this stack

	// readSlow, writeSlow: the connection is closed, the link is broken, or a deadline is set.
	// Only then do Read and Write call readTrouble and writeTrouble.
	readSlow, writeSlow bool
	closed              bool
	posted              bool // a reader has posted its buffer
	inCorks             bool // it is in Stack.corks
	writing             bool // a goroutine is in writeInTurn
	connected           bool
	drained             bool // all data and our FIN are acknowledged
	finished            bool // CLOSED or TIME-WAIT
	chosen              bool // its local port is from Config.TCPPorts
	readDeadline        instant
	writeDeadline       instant
	reads               uint32        // since the clock was last read for readDeadline
	linger              time.Duration // negative: Close does not wait
	network             string        // in errors
	keepAlive           tcp.KeepAlive // as it was set

	readable  event
	writable  event // there is room, or the handshake is complete
	turn      event // writing has become false
	reclaimed event // lent memory has been returned

	local, remote net.Addr // *net.TCPAddr
	port          *portUse // nil: Options.Released is not set
}

var _ net.Conn = (*TCPConn)(nil)

func (s *Stack) newTCPConn(o *TCPOptions) *TCPConn {
	c := &TCPConn{stack: s, readDeadline: never, writeDeadline: never, linger: -1, keepAlive: o.KeepAlive, network: o.network()}
	c.setSlow() // +checklocksignore: of s
	return c
}

// begin makes c the socket of a connection of the engine.
//
// +checklocks:c.stack.mu
func (c *TCPConn) begin(conn *tcp.Conn) {
	c.conn, conn.Owner = conn, c
	c.local = net.TCPAddrFromAddrPort(c.stack.netipPort(conn.Local()))
	c.remote = net.TCPAddrFromAddrPort(c.stack.netipPort(conn.Remote()))
	c.stack.tcpConns[c] = struct{}{}
}

// network is the name in errors.
func (o *TCPOptions) network() string { return cmp.Or(o.Network, "tcp") }

func (o *TCPOptions) engine(s *Stack) tcp.Options {
	return tcp.Options{MTU: s.mtu, SendBuffer: o.SendBuffer, ReceiveBuffer: o.ReceiveBuffer, KeepAlive: o.KeepAlive, AdaptiveAck: true}
}

// newSecret makes a key for the TCP engine.
func newSecret() (secret [16]byte) {
	rand.Read(secret[:]) // never fails
	return secret
}

// DialTCP opens a connection to remote and waits until it is established, or ctx
// is done. The address in local is the stack's, or unspecified. Port 0 stands for a port
// that has no connection to remote, see [tcp.Table.ChoosePort].
//
// Errors: ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH and ENETUNREACH, which may come
// with the resolver's error, EHOSTUNREACH also if the resolver does not answer for 10 s, EADDRINUSE if the two ends have a connection already,
// EADDRNOTAVAIL if every port that may be chosen has a connection to remote ([ErrNoPort]
// with Config.TCPPorts) or the address was removed from the host, ENETDOWN, and the error
// of ctx. Before it fails because the two ends, or all ports, have a connection, it
// processes received frames, which may end connections.
func (s *Stack) DialTCP(ctx context.Context, local, remote netip.AddrPort, o TCPOptions) (*TCPConn, error) {
	to, err := s.remoteEnd(remote, o.network())
	if err != nil {
		return nil, err
	}
	from, err := s.localEnd(local, to.Addr, o.network())
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.newTCPConn(&o)
	if err := c.open(from, to, &o); err != nil { // +checklocksignore: a connection of this stack
		return nil, err
	}
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.role.broadcast(&c.writable)
		s.mu.Unlock()
	})()
	if !c.loop {
		err = s.uplinkOf(from.Addr).kickErr // the SYN cannot be sent
	}
	for !c.connected && !c.finished && err == nil {
		s.waitFor(&c.writable, never)
		if err = ctx.Err(); err == nil {
			err = s.broken
		}
	}
	switch {
	case c.connected && !c.closed:
		if o.Released != nil {
			c.port = &portUse{1, o.Released}
		}
		return c, nil
	case c.closed: // by Stack.Close
		err = s.ended()
	case s.broken != nil:
	case c.conn.Err() != nil:
		err = c.conn.Err()
		if r := c.route; r != nil && r.state == routeFailed && r.uplink.zone != 0 && errors.Is(r.err, err) {
			err = r.err // it names the uplinks
		}
	}
	c.close(0) // +checklocksignore: a connection of this stack
	return nil, err
}

// open sends the SYN.
//
// +checklocks:c.stack.mu
func (c *TCPConn) open(from, to tcp.AddrPort, o *TCPOptions) (err error) {
	s := c.stack
	if s.closing || s.broken != nil {
		return s.ended()
	}
	s.readClock()
	if c.loop = s.isLoopBackTCP(from, to); !c.loop {
		if why := s.downFrom(from.Addr); why != nil {
			return why
		}
		if to.Addr.IsLoopback() {
			return syscall.ECONNREFUSED // no listener
		}
		if c.route, err = s.usableRoute(from.Addr, to.Addr); err != nil {
			return err
		}
	}
	for range batchesPerPoll {
		// Received frames that are not processed yet may end connections.
		if err = c.enter(from, to, o); err == nil || s.input() == 0 {
			break
		}
	}
	if err == nil {
		s.settleAtEnd()
	}
	return err
}

// enter chooses the local port, if from has none, and makes the connection.
//
// +checklocks:c.stack.mu
func (c *TCPConn) enter(from, to tcp.AddrPort, o *TCPOptions) error {
	s := c.stack
	if c.chosen = from.Port == 0 && s.ports != nil; c.chosen {
		table := s.tcp
		pick := func(blocks []tcp.PortBlock) uint16 { return table.ChoosePort(from.Addr, to, blocks) }
		if from.Port = s.ports.Choose(s.netip(from.Addr), pick); from.Port == 0 {
			return ErrNoPort
		}
	}
	conn, err := s.tcp.Dial(tcp.Time(s.now), from, to, o.engine(s))
	if err != nil {
		if c.chosen {
			s.ports.Release(s.netip(from.Addr), from.Port)
		}
		return err
	}
	c.begin(conn)
	return nil
}

// isLoopBackTCP reports whether segments between the two addresses stay in the stack. If
// our address is shared, a port without a socket here may belong to another endpoint.
//
// +checklocks:s.mu
func (s *Stack) isLoopBackTCP(from, to tcp.AddrPort) bool {
	switch {
	case !to.Addr.IsLoopback() && !s.isOurs(to.Addr):
		return false
	case s.ownedAddress && !to.Addr.IsLoopback():
		return true
	}
	return s.tcp.Knows(to, from)
}

// LocalAddr is the address and port on this side, a *net.TCPAddr.
func (c *TCPConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's address and port, a *net.TCPAddr.
func (c *TCPConn) RemoteAddr() net.Addr { return c.remote }

// Info is the state of the connection, as the kernel has it in TCP_INFO.
func (c *TCPConn) Info() tcp.Info {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.conn.Info()
}

// fail wraps err in a *net.OpError, as package net does.
func (c *TCPConn) fail(op, call string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return opError(op, c.network, call, c.local, c.remote, err)
}

// +checklocks:c.stack.mu
func (c *TCPConn) setSlow() {
	trouble := c.closed || c.stack.broken != nil
	c.readSlow = trouble || c.readDeadline != never
	c.writeSlow = trouble || c.writeDeadline != never
}

// +checklocks:c.stack.mu
func (c *TCPConn) wakeAll() {
	s := c.stack
	s.role.broadcast(&c.readable)
	s.role.broadcast(&c.writable)
	s.role.broadcast(&c.turn)
	s.role.broadcast(&c.reclaimed)
}

// CloseRead ends reading: reads return io.EOF.
func (c *TCPConn) CloseRead() error {
	var failed error
	err := c.change(func(now tcp.Time) {
		if c.finished {
			failed = syscall.ENOTCONN
			return
		}
		c.conn.CloseRead(now)
		c.stack.role.broadcast(&c.readable) // +checklocksignore: change calls this with mu held
	})
	if err == nil {
		err = failed
	}
	return c.fail("close", "shutdown", err)
}

// CloseWrite sends a FIN after all written data: the peer reads io.EOF. Reading is still
// possible.
func (c *TCPConn) CloseWrite() error {
	var failed error
	err := c.change(func(now tcp.Time) {
		if failed = c.conn.CloseWrite(now); c.conn.State() == tcp.TimeWait || failed == syscall.ECONNRESET {
			failed = syscall.ENOTCONN
		}
		c.stack.role.broadcast(&c.writable) // +checklocksignore: change calls this with mu held
	})
	if err == nil {
		err = failed
	}
	return c.fail("close", "shutdown", err)
}

// Close closes the connection. Written data is still sent, and then a FIN; see
// [TCPConn.SetLinger]. If received data has not been read, a RST is sent instead. Calls that
// block on the connection return net.ErrClosed.
func (c *TCPConn) Close() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return c.fail("close", "close", s.ended())
	}
	c.close(c.linger)
	if c.linger > 0 {
		for until := s.now + instant(c.linger); !c.drained && !c.finished && s.now < until && !s.closed && s.broken == nil; {
			s.waitFor(&s.drained, until)
		}
		if !c.drained && !c.finished {
			c.conn.Abort()
			s.settleAtEnd()
		}
	}
	return nil
}

// +checklocks:c.stack.mu
func (c *TCPConn) close(linger time.Duration) {
	s := c.stack
	now := tcp.Time(s.readClock())
	c.closed = true
	c.setSlow()
	if linger == 0 {
		c.conn.Abort()
	} else {
		c.conn.Close(now)
	}
	c.wakeAll()
	s.settleAtEnd()
	c.release()
}

// release frees the local port, once the connection has been closed and has ended.
//
// +checklocks:c.stack.mu
func (c *TCPConn) release() {
	s := c.stack
	if _, known := s.tcpConns[c]; !known || !c.closed || !c.finished {
		return
	}
	delete(s.tcpConns, c)
	if c.port != nil {
		c.port.leave()
	}
	if c.chosen {
		local := c.conn.Local()
		s.ports.Release(s.netip(local.Addr), local.Port)
	}
}

// closeTCP closes all connections and listeners when the stack closes. It waits up to a
// second until the peers have acknowledged all data. Other connections end with a RST.
//
// +checklocks:s.mu
func (s *Stack) closeTCP() {
	s.closeAll()
	for until := s.readClock() + second; s.draining() && s.now < until; {
		s.waitFor(&s.drained, until)
	}
	s.closeAll() // connections made meanwhile
	s.tcp.Close()
	s.settle()
	s.sendAll()
}

// closeAll closes all listeners, and all connections that have not been closed.
//
// +checklocks:s.mu
func (s *Stack) closeAll() {
	for l := range s.tcpListeners {
		l.close() // +checklocksignore: a listener of this stack
	}
	for c := range s.tcpConns {
		if !c.closed {
			c.close(c.linger) // +checklocksignore: a connection of this stack
		}
	}
}

// draining reports whether a connection that was closed has data or a FIN that the peer
// has not acknowledged.
//
// +checklocks:s.mu
func (s *Stack) draining() bool {
	if s.broken != nil || s.clock != nil { // a clock of a test may stand still
		return false
	}
	for c := range s.tcpConns {
		if !c.drained && !c.finished && s.downFrom(c.conn.Local().Addr) == nil {
			return true
		}
	}
	return false
}
