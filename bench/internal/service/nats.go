package service

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/load"
)

const natsSubject = "echo"

// natsStart is how long an embedded server may take to start.
const natsStart = 10 * time.Second

// serveNATS runs a NATS server with a responder inside. nats-server makes its listener itself, so
// each accepted connection is copied to a connection within the process, on both networks.
func serveNATS(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) (err error) {
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(natsStart) {
		return errors.New("nats-server did not start")
	}
	responder, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return err
	}
	defer responder.Close()
	if _, err := responder.Subscribe(natsSubject, func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil { // an error means that the server has ended
		return err
	}
	if err := responder.Flush(); err != nil {
		return err
	}
	return serveConns(ctx, n, address, ready, func(c net.Conn) {
		defer c.Close()
		inside, err := s.InProcessConn()
		if err != nil {
			return // the server has ended
		}
		go func() {
			io.Copy(inside, c)
			inside.Close()
		}()
		io.Copy(c, inside)
	})
}

// requester is a client of NATS.
type requester struct {
	conn   *nats.Conn
	ctx    context.Context
	cancel context.CancelFunc
}

// natsDialer is a nats.CustomDialer.
type natsDialer struct {
	ctx context.Context
	n   unet.Network
}

func (d natsDialer) Dial(network, address string) (net.Conn, error) {
	return d.n.DialContext(d.ctx, network, address)
}

func dialNATS(ctx context.Context, n unet.Network, address string) (load.Conn, error) {
	c, err := nats.Connect("nats://"+address, nats.SetCustomDialer(natsDialer{ctx, n}), nats.NoReconnect())
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithCancel(context.Background())
	return requester{c, asking, cancel}, nil
}

func (r requester) Ask() error {
	m, err := r.conn.RequestWithContext(r.ctx, natsSubject, message)
	if err != nil {
		return err
	}
	return check(m.Data, message)
}

func (r requester) Close() error {
	r.cancel()
	r.conn.Close()
	return nil
}
