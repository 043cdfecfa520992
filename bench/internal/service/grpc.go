package service

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/load"
)

// Methods of echoService.
const (
	unaryMethod  = "/unet.bench.Echo/Unary"
	streamMethod = "/unet.bench.Echo/Stream"
)

// echoService returns each BytesValue that it receives: by a unary call, and on a bidirectional
// stream. It is what protoc would generate for them.
var echoService = grpc.ServiceDesc{
	ServiceName: "unet.bench.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Unary",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			m := new(wrapperspb.BytesValue)
			return m, decode(m)
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName: "Stream", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				m := new(wrapperspb.BytesValue)
				if err := s.RecvMsg(m); err != nil {
					return err
				}
				if err := s.SendMsg(m); err != nil {
					return err
				}
			}
		},
	}},
}

// serveGRPC serves both methods, without TLS.
func serveGRPC(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error {
	l, err := n.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	s.RegisterService(&echoService, nil)
	defer context.AfterFunc(ctx, s.Stop)()
	ready(l.Addr())
	return s.Serve(l)
}

// caller makes unary calls.
type caller struct {
	conn   *grpc.ClientConn
	ctx    context.Context
	cancel context.CancelFunc
}

func newCaller(n unet.Network, address string) (caller, error) {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return n.DialContext(ctx, "tcp", address) }))
	if err != nil {
		return caller{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return caller{conn, ctx, cancel}, nil
}

// dialGRPC returns a client that opens its connection with the first request.
func dialGRPC(_ context.Context, n unet.Network, address string) (load.Conn, error) {
	return newCaller(n, address)
}

func (c caller) Ask() error {
	answer := new(wrapperspb.BytesValue)
	if err := c.conn.Invoke(c.ctx, unaryMethod, wrapperspb.Bytes(message), answer); err != nil {
		return err
	}
	return check(answer.Value, message)
}

func (c caller) Close() error {
	c.cancel()
	return c.conn.Close()
}

// streamCaller sends its messages on one stream.
type streamCaller struct {
	caller
	stream grpc.ClientStream
}

func dialGRPCStream(_ context.Context, n unet.Network, address string) (load.Conn, error) {
	c, err := newCaller(n, address)
	if err != nil {
		return nil, err
	}
	s, err := c.conn.NewStream(c.ctx, &echoService.Streams[0], streamMethod)
	if err != nil {
		c.Close()
		return nil, err
	}
	return streamCaller{c, s}, nil
}

func (s streamCaller) Ask() error {
	if err := s.stream.SendMsg(wrapperspb.Bytes(message)); err != nil {
		return err
	}
	answer := new(wrapperspb.BytesValue)
	if err := s.stream.RecvMsg(answer); err != nil {
		return err
	}
	return check(answer.Value, message)
}
