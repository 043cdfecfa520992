package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/load"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/unettest"
)

// hosts are the networks of a server and a client, and where the server listens.
type hosts struct {
	server, client unet.Network
	address        string
}

// networks are kernel sockets on loopback, and two hosts of unet in memory.
func networks(t *testing.T) map[string]hosts {
	t.Helper()
	lan, err := unettest.Open(unettest.Options{Hosts: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lan.Close() })
	return map[string]hosts{
		"kernel": {unet.Kernel(), unet.Kernel(), "127.0.0.1:0"},
		"unet":   {lan.Host("a"), lan.Host("b"), netip.AddrPortFrom(lan.Host("a").Addr(), 0).String()},
	}
}

// TestServicesAnswer: each service answers on several connections, an Ask ends when its connection is closed,
// and the server ends with its context.
func TestServicesAnswer(t *testing.T) {
	for _, name := range plan.ServiceNames() {
		s, err := ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if s.Serve == nil {
			s.Serve = serveRedis
		}
		for network, h := range networks(t) {
			t.Run(name+" on "+network, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				ready, ended := make(chan net.Addr, 1), make(chan error, 1)
				go func() { ended <- s.Serve(ctx, h.server, h.address, func(a net.Addr) { ready <- a }) }()
				var at net.Addr
				select {
				case at = <-ready:
				case err := <-ended:
					t.Fatal(err)
				}
				var conns []load.Conn
				for range 3 {
					c, err := s.Dial(t.Context(), h.client, at.String())
					if err != nil {
						t.Fatal(err)
					}
					conns = append(conns, c)
					for range 5 {
						if err := c.Ask(); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := conns[0].Close(); err != nil {
					t.Error(err)
				}
				if conns[0].Ask() == nil {
					t.Error("a closed connection is answered")
				}
				r, err := load.Run(t.Context(), conns[1:], load.Options{Duration: time.Millisecond})
				if err != nil || r.Failed != 0 || r.Lost != 0 {
					t.Errorf("%+v, %v", r, err)
				}
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		}
	}
	if _, err := ByName("smtp"); err == nil || !strings.Contains(err.Error(), plan.H2TLS) {
		t.Errorf("%v", err)
	}
}

// serveRedis answers SET and GET of one key as resp does.
func serveRedis(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error {
	return serveConns(ctx, n, address, ready, func(c net.Conn) {
		defer c.Close()
		var value string
		for in := bufio.NewReader(c); ; {
			words, err := readCommand(in)
			switch {
			case err != nil:
				return
			case words[0] == "SET":
				value = words[2]
				io.WriteString(c, "+OK\r\n")
			default:
				fmt.Fprintf(c, "$%d\r\n%s\r\n", len(value), value)
			}
		}
	})
}

// readCommand reads an array of bulk strings.
func readCommand(in *bufio.Reader) (words []string, err error) {
	var n int
	if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	for range n {
		var size int
		if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		word := make([]byte, size+len("\r\n"))
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:size]))
	}
	return words, nil
}

// TestWrongAnswersAreErrors: an echo that is another message, and a reply that is an error of Redis.
func TestWrongAnswersAreErrors(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		defer server.Close()
		b := make([]byte, len(message))
		io.ReadFull(server, b)
		b[63]++
		server.Write(b)
		io.ReadFull(server, b[:len(getRequest)])
		io.WriteString(server, "-ERR no\r\n")
	}()
	if err := newStream(client).Ask(); !errors.Is(err, errAnswer) {
		t.Errorf("%v", err)
	}
	r := redis{client, bufio.NewReader(client), make([]byte, len(message)+2)}
	if err := r.Ask(); err == nil || !strings.Contains(err.Error(), "-ERR no") {
		t.Errorf("%v", err)
	}
}
