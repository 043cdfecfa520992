package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/load"
	"github.com/unet-go/unet/bench/internal/plan"
)

// Service is a server and its client.
type Service struct {
	// Serve answers at address until ctx ends. It calls ready with the address of its
	// socket when it accepts connections. It is nil if the server is a program of its own.
	Serve func(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error
	// Dial opens a connection. ctx limits the opening only.
	Dial func(ctx context.Context, n unet.Network, address string) (load.Conn, error)
}

// services by their names.
var services = map[string]Service{
	plan.TCP:        {serveTCP, dialTCP},
	plan.HTTP:       web{message, false}.service(),
	plan.H2TLS:      web{message, true}.service(),
	plan.HTTPBulk:   web{bulk, false}.service(),
	plan.H2Bulk:     web{bulk, true}.service(),
	plan.GRPC:       {serveGRPC, dialGRPC},
	plan.GRPCStream: {serveGRPC, dialGRPCStream},
	plan.Redis:      {Dial: dialRedis},
	plan.NATS:       {serveNATS, dialNATS},
	plan.QUIC:       {serveQUIC, dialQUIC},
}

// ByName is the service with a name of [plan.ServiceList].
func ByName(name string) (Service, error) {
	s, ok := services[name]
	if !ok {
		return s, fmt.Errorf("there is no service %q: want one of %v", name, plan.ServiceNames())
	}
	return s, nil
}

// message is what requests and most answers carry, bulk what large answers do.
var (
	message = bytes.Repeat([]byte("unet"), 16)
	bulk    = bytes.Repeat([]byte("unet"), 256<<10)
)

// errAnswer is the error of an answer that is not what was sent.
var errAnswer = errors.New("the answer is not the message that was sent")

// check compares an answer with what it should be.
func check(answer, want []byte) error {
	if !bytes.Equal(answer, want) {
		return errAnswer
	}
	return nil
}

// serveConns listens at address and serves each connection in a goroutine, until ctx ends.
func serveConns(ctx context.Context, n unet.Network, address string, ready func(net.Addr), serve func(net.Conn)) error {
	l, err := n.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	ready(l.Addr())
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		go serve(c)
	}
}
