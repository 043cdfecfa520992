package transport

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
)

// openGrant gets an endpoint from this host's unetd. The job says how it is attached.
func openGrant(ctx context.Context, j workload.Job, req endpoint.Request) (g *endpoint.Grant, l *control.Lease, err error) {
	if req.Attach, err = endpoint.ParseAttachment(j.Attach); err != nil {
		return nil, nil, err
	}
	err = whileBusy(ctx, endpoint.ErrBusy, func() (err error) { g, l, err = control.Open(ctx, j.Socket, req); return err })
	return g, l, err
}

// messages is an endpoint and a channel to the other one. Payloads are written (one copy)
// and read in place.
type messages struct {
	ep       *datapath.Endpoint
	ch       datapath.Channel
	lease    endpoint.Lease
	deadline time.Time
	lent     [workload.RecvBatchSize]datapath.Message
	held     int // of lent
}

func openMessages(ctx context.Context, j workload.Job, _ func()) (workload.Conn, error) {
	wait, err := endpoint.ParseWaitMode(j.Wait)
	if err != nil {
		return nil, err
	}
	g, lease, err := openGrant(ctx, j, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(j.Local.Tag)}})
	if err != nil {
		return nil, err
	}
	ep, err := datapath.Attach(g, datapath.Config{Wait: wait, Lease: lease})
	if err != nil {
		return nil, errors.Join(err, g.Close(), lease.Close())
	}
	ch, err := ep.Channel(ctx, lease, j.Remote.UDP.Addr(), j.Remote.Tag, j.Local.Tag)
	if err != nil {
		return nil, errors.Join(err, ep.Close(), lease.Close())
	}
	return &messages{ep: ep, ch: ch, lease: lease}, nil
}

// release returns the messages that were received.
func (m *messages) release() {
	for i := range m.lent[:m.held] {
		m.ep.Return(&m.lent[i])
	}
	m.held = 0
}

// write stages one message, and waits while there is no room.
func (m *messages) write(b []byte) error {
	for {
		err := m.ep.Write(&m.ch, b)
		if !errors.Is(err, datapath.ErrQueueFull) && !errors.Is(err, datapath.ErrNoBuffers) {
			return err
		}
		if err := m.ep.Flush(); err != nil {
			return err
		}
	}
}

func (m *messages) Send(b []byte) error {
	if err := m.write(b); err != nil {
		return err
	}
	return m.ep.Flush()
}

func (m *messages) SendBatch(bs [][]byte) error {
	for _, b := range bs {
		if err := m.write(b); err != nil {
			return err
		}
	}
	return m.ep.Flush()
}

func (m *messages) Recv() ([]byte, error) {
	if err := m.receive(1); err != nil {
		return nil, err
	}
	return m.lent[0].Payload(), nil
}

func (m *messages) RecvBatch(bs [][]byte) (int, error) {
	if err := m.receive(min(len(bs), len(m.lent))); err != nil {
		return 0, err
	}
	for i := range m.held {
		bs[i] = m.lent[i].Payload()
	}
	return m.held, nil
}

// receive waits for at least one message and takes up to limit.
func (m *messages) receive(limit int) error {
	m.release()
	for m.held == 0 {
		if err := m.ep.Wait(m.deadline); err != nil {
			return err
		}
		m.held = m.ep.Borrow(m.lent[:limit])
	}
	return nil
}

func (m *messages) Reply() error                  { return m.Send(m.lent[0].Payload()) }
func (m *messages) SetDeadline(t time.Time) error { m.deadline = t; return nil }

func (m *messages) Close() error {
	m.release()
	return errors.Join(m.ep.Close(), m.lease.Close())
}

// unetUDP is a connected UDP socket of package unet.
type unetUDP struct {
	blockingUDP
	conn    *unet.UDPConn
	host    *unet.Host
	out, in []unet.UDPMessage
}

// openHost is a host of package unet on an endpoint of this host's unetd. It shares
// the interface's address, unless the job gives it one of its own.
func openHost(ctx context.Context, j workload.Job) (*unet.Host, error) {
	wait, err := endpoint.ParseWaitMode(j.Wait)
	if err != nil {
		return nil, err
	}
	g, lease, err := openGrant(ctx, j, endpoint.Request{})
	if err != nil {
		return nil, err
	}
	cfg := unet.HostConfig{Wait: wait}
	if j.Local.Own.IsValid() {
		cfg.Addrs = []netip.Addr{j.Local.Own}
	}
	host, err := unet.New(ctx, g, lease, cfg)
	if err != nil {
		return nil, errors.Join(err, g.Close(), lease.Close())
	}
	return host, nil
}

func openUDP(ctx context.Context, j workload.Job, _ func()) (workload.Conn, error) {
	host, err := openHost(ctx, j)
	if err != nil {
		return nil, err
	}
	conn, err := host.DialUDP(ctx, j.Local.UDP, j.Remote.UDP)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	u := &unetUDP{
		blockingUDP: newBlockingUDP(conn), conn: conn, host: host,
		out: make([]unet.UDPMessage, j.Batch),
		in:  make([]unet.UDPMessage, workload.RecvBatchSize),
	}
	for i := range u.in {
		u.in[i].Buf = make([]byte, maxMessage)
	}
	return u, nil
}

func (u *unetUDP) SendBatch(bs [][]byte) error {
	for i, b := range bs {
		u.out[i].Buf = b
	}
	for from := 0; from < len(bs); {
		n, err := u.conn.WriteBatch(u.out[from:len(bs)])
		if err != nil {
			return err
		}
		from += n
	}
	return nil
}

func (u *unetUDP) RecvBatch(bs [][]byte) (int, error) {
	n, err := u.conn.ReadBatch(u.in[:min(len(bs), len(u.in))])
	for i := range n {
		bs[i] = u.in[i].Buf[:u.in[i].N]
	}
	return n, err
}

func (u *unetUDP) Close() error { return errors.Join(u.conn.Close(), u.host.Close()) }

// dialTCP dials from a host of package unet, which chooses the ports.
func dialTCP(ctx context.Context, j workload.Job) (d workload.Dialer, err error) {
	host, err := openHost(ctx, j)
	if err != nil {
		return d, err
	}
	return workload.Dialer{
		Dial: func(ctx context.Context) (workload.Stream, error) {
			return opened(host.DialTCP(ctx, netip.AddrPort{}, j.Remote.UDP))
		},
		Close: host.Close,
	}, nil
}

func listenTCP(ctx context.Context, j workload.Job) (of workload.Listener, err error) {
	host, err := openHost(ctx, j)
	if err != nil {
		return of, err
	}
	l, err := host.ListenTCP(ctx, j.Local.UDP)
	if err != nil {
		return of, errors.Join(err, host.Close())
	}
	return workload.Listener{
		Accept: func() (workload.Stream, error) { return opened(l.AcceptTCP()) },
		Close:  func() error { return errors.Join(l.Close(), host.Close()) },
	}, nil
}

// opened is a connection as an interface, which is nil after an error.
func opened[C workload.Stream](c C, err error) (workload.Stream, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}
