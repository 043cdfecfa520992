package unet

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
)

// Dialer opens connections of a host, as a net.Dialer does of the kernel. Host is required;
// the zero values of the other fields are the defaults. It has no Control, because there is
// no descriptor: ReadBuffer and WriteBuffer are what is set before a connection is opened.
type Dialer struct {
	Host *Host

	// Timeout and Deadline limit how long a dial takes, with the resolution of a name. Zero:
	// no limit but that of the context. Several addresses of a name share the time.
	Timeout  time.Duration
	Deadline time.Time

	LocalAddr net.Addr // *net.TCPAddr or *net.UDPAddr; nil: an address of the host and a free port

	// KeepAlive is the time of silence after which a connection is probed. 0: 15 s; negative:
	// there are no probes. It is not used if KeepAliveConfig.Enable is set.
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig

	// ReadBuffer and WriteBuffer bound what is received and not read, and what is written
	// and not acknowledged, in bytes. 0: the defaults. WriteBuffer has no meaning for UDP.
	ReadBuffer, WriteBuffer int

	Resolver *net.Resolver // nil: Host.Resolver
}

// Dial is DialContext without a context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext opens a connection, for "tcp", "udp", and these with "4" or "6". Of a name with
// several addresses the families take turns, and the next is tried when all before have
// failed or 250 ms have passed (RFC 8305); the error is that of the first. ctx limits how long
// that may take; after that its end has no effect.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	now := time.Now()
	if deadline := earliest(d.Deadline, d.Timeout, now); !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	remotes, err := d.Host.resolve(ctx, d.Resolver, "dial", network, address)
	var local netip.AddrPort
	if err == nil {
		local, err = localOf(network, d.LocalAddr)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return race(ctx, len(remotes), func(ctx context.Context, i int) (net.Conn, error) {
		return d.one(ctx, network, local, remotes[i])
	}, func(c net.Conn) { c.Close() })
}

// one dials one address.
func (d *Dialer) one(ctx context.Context, network string, local, remote netip.AddrPort) (net.Conn, error) {
	if isUDP(network) {
		c, err := d.Host.dialUDP(ctx, network, local, remote, stack.UDPOptions{})
		if err == nil {
			c, err = withReadBuffer(c, d.ReadBuffer)
		}
		if err != nil {
			return nil, err // a nil interface, not one that holds a nil pointer
		}
		return c, nil
	}
	c, err := d.Host.dialTCP(ctx, network, local, remote, stack.TCPOptions{
		KeepAlive: keepAliveOf(d.KeepAlive, d.KeepAliveConfig), SendBuffer: d.WriteBuffer, ReceiveBuffer: d.ReadBuffer,
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ListenConfig opens listeners and sockets of a host, as a net.ListenConfig does of the
// kernel. Host is required; the zero values of the other fields are the defaults. It has no
// Control, because there is no descriptor.
type ListenConfig struct {
	Host *Host

	// KeepAlive and KeepAliveConfig are for the accepted connections: see [Dialer].
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig

	// Backlog is how many connections may wait to be accepted. 0:
	// [tcp.DefaultAcceptQueue]. Further ones are dropped, and their peers try again.
	Backlog int

	// Reuse: other listeners or sockets of this host that have it set, too, may listen on the
	// same address and port, as with SO_REUSEPORT. Each connection, or the datagrams of each
	// sender, go to one of them, by a hash of the addresses and ports. When one is closed, the
	// connections that wait there are reset. The port must be given.
	Reuse bool

	// ReadBuffer and WriteBuffer are as in [Dialer], for the accepted connections or the
	// socket.
	ReadBuffer, WriteBuffer int

	Resolver *net.Resolver // nil: Host.Resolver
}

// Listen announces on a local address, for "tcp", "tcp4" and "tcp6". An empty or unspecified
// address stands for all addresses of the host that are of the family, or of both; port 0 is a
// port that is free at all of them. An address at which the policy denies the port is left out
// if another one is left.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	local, err := lc.Host.resolve(ctx, lc.Resolver, "listen", network, address, "tcp", "tcp4", "tcp6")
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	l, err := lc.Host.listenTCP(ctx, network, local[0], stack.TCPListenOptions{
		Backlog: lc.Backlog, Shared: lc.Reuse,
		TCPOptions: stack.TCPOptions{
			KeepAlive: keepAliveOf(lc.KeepAlive, lc.KeepAliveConfig), SendBuffer: lc.WriteBuffer, ReceiveBuffer: lc.ReadBuffer,
		},
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ListenPacket opens a socket at a local address, for "udp", "udp4" and "udp6". Addresses and
// ports are as for Listen.
func (lc *ListenConfig) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	local, err := lc.Host.resolve(ctx, lc.Resolver, "listen", network, address, "udp", "udp4", "udp6")
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	c, err := lc.Host.openUDP(ctx, "listen", network, local[0], netip.AddrPort{}, stack.UDPOptions{Shared: lc.Reuse})
	if err != nil {
		return nil, err
	}
	if c, err = withReadBuffer(c, lc.ReadBuffer); err != nil {
		return nil, err
	}
	return c, nil
}

// withReadBuffer sets the read buffer of a new socket; 0: it has the default. After an error, which
// means that the host was closed, there is no socket.
func withReadBuffer(c *UDPConn, bytes int) (*UDPConn, error) {
	if bytes == 0 {
		return c, nil
	}
	if err := c.SetReadBuffer(bytes); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// keepAliveOf is what net.Dialer and net.ListenConfig make of these two fields.
func keepAliveOf(period time.Duration, config net.KeepAliveConfig) tcp.KeepAlive {
	switch {
	case config.Enable:
		return tcp.KeepAlive{Enable: true, Idle: max(config.Idle, 0), Interval: max(config.Interval, 0), Count: max(config.Count, 0)}
	case period < 0:
		return tcp.KeepAlive{}
	}
	return tcp.KeepAlive{Enable: true, Idle: period}
}

// earliest is the earlier of a deadline and the end of a timeout that begins now. Zero: never.
func earliest(deadline time.Time, timeout time.Duration, now time.Time) time.Time {
	if timeout == 0 {
		return deadline
	}
	if end := now.Add(timeout); deadline.IsZero() || end.Before(deadline) {
		return end
	}
	return deadline
}

// localOf reads Dialer.LocalAddr.
func localOf(network string, a net.Addr) (netip.AddrPort, error) {
	var ap netip.AddrPort
	var ip net.IP
	ok := true
	switch a := a.(type) {
	case nil:
		return ap, nil
	case *net.TCPAddr:
		if a == nil && !isUDP(network) {
			return ap, nil
		}
		ap, ip, ok = a.AddrPort(), a.IP, !isUDP(network)
	case *net.UDPAddr:
		if a == nil && isUDP(network) {
			return ap, nil
		}
		ap, ip, ok = a.AddrPort(), a.IP, isUDP(network)
	default:
		ok = false
	}
	if !ok {
		return ap, &net.AddrError{Err: "mismatched local address type", Addr: a.String()}
	}
	if ip == nil {
		ap = netip.AddrPortFrom(netip.IPv4Unspecified(), ap.Port())
	}
	return ap, nil
}
