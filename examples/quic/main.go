//go:build linux

// Quic echoes a stream of QUIC over unet's UDP, with quic-go. Only the packet connections are unet's.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/unet-go/unet"
	"github.com/unet-go/unet/quicconn"
)

const usage = `usage:
  quic [flags] serve ADDR:PORT
  quic [flags] ping  ADDR:PORT   sends 64 bytes over one stream, again and again, each after the echo of the last

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "quic:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var cfg unet.Config
	if err := cfg.FromEnv(); err != nil {
		return err
	}
	cfg.RegisterFlags(flag.CommandLine)
	kernel := flag.Bool("kernel", false, "use the kernel's sockets, with unetd or without")
	n := flag.Int("n", 1000, "ping: `number` of round trips")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage); flag.PrintDefaults() }
	flag.Parse()
	args := flag.Args()
	if len(args) != 2 {
		return errors.New("want serve or ping, and an address (see quic --help)")
	}
	if *n < 1 {
		return errors.New("-n is at least 1 (see quic --help)")
	}
	network := &unet.Opened{Network: unet.Kernel()}
	if !*kernel {
		var err error
		if network, err = unet.OpenNetwork(ctx, cfg, unet.Kernel()); err != nil {
			return err
		}
	}
	defer network.Close()
	switch command, address := args[0], args[1]; command {
	case "serve":
		conn, err := listenPacket(ctx, network, address)
		if err != nil {
			return err
		}
		fmt.Println("listening on", conn.LocalAddr())
		return serve(ctx, conn)
	case "ping":
		conn, err := listenPacket(ctx, network, ":0")
		if err != nil {
			return err
		}
		times, err := ping(ctx, conn, address, *n)
		if err != nil {
			return err
		}
		var all time.Duration
		for _, t := range times {
			all += t
		}
		slices.Sort(times)
		at := func(part float64) time.Duration {
			return times[int(part*float64(len(times)-1))].Round(time.Microsecond / 10)
		}
		fmt.Printf("%d round trips, median %v, p99 %v, %.0f a second\n", len(times), at(0.5), at(0.99), float64(len(times))/all.Seconds())
		return nil
	default:
		return fmt.Errorf("unknown command %q (see quic --help)", command)
	}
}

// listenPacket opens a UDP socket. Package quicconn gives a socket of unet what quic-go expects of a
// kernel socket: quic-go then uses ECN, sends several packets in a call, and finds the path's MTU.
func listenPacket(ctx context.Context, network unet.Network, address string) (net.PacketConn, error) {
	conn, err := network.ListenPacket(ctx, "udp", address)
	if conn, ok := conn.(*unet.UDPConn); ok {
		os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") // the buffer is not the kernel's
		return quicconn.New(conn)
	}
	return conn, err
}

const protocol = "echo" // that both ends name in the TLS handshake

// serve accepts connections until ctx ends, and echoes their streams.
func serve(ctx context.Context, conn net.PacketConn) error {
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: conn}
	defer transport.Close()
	listener, err := transport.Listen(&tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{protocol}}, nil)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			for {
				stream, err := conn.AcceptStream(ctx)
				if err != nil {
					return // the client has closed the connection
				}
				go func() {
					io.Copy(stream, stream)
					stream.Close()
				}()
			}
		}()
	}
}

// ping sends n messages of 64 bytes over one stream, and returns the time that each echo took.
func ping(ctx context.Context, conn net.PacketConn, address string, n int) ([]time.Duration, error) {
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	transport := &quic.Transport{Conn: conn}
	defer transport.Close()
	// The server's certificate is new at each start, so the client cannot know it. Do not copy this.
	session, err := transport.Dial(ctx, to, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}, nil)
	if err != nil {
		return nil, err
	}
	defer session.CloseWithError(0, "")
	stream, err := session.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	var message, echo [64]byte
	for i := range n {
		message[0] = byte(i)
		start := time.Now()
		if _, err := stream.Write(message[:]); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(stream, echo[:]); err != nil {
			return nil, err
		}
		if echo != message {
			return nil, fmt.Errorf("echo %d is not what was sent", i)
		}
		times = append(times, time.Since(start))
	}
	return times, stream.Close()
}

func selfSigned() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, err
}
