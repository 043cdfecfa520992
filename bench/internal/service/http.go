package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/load"
)

func newHTTPServer() *http.Server {
	return &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(message) // an error means that the client has gone
	})}
}

// serveHTTP answers GET by the message.
func serveHTTP(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error {
	l, err := n.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s := newHTTPServer()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	ready(l.Addr())
	return served(s.Serve(l))
}

// serveH2 is serveHTTP with TLS, over which net/http speaks HTTP/2.
func serveH2(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error {
	c, err := certificate()
	if err != nil {
		return err
	}
	l, err := n.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s := newHTTPServer()
	s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{c}}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	ready(l.Addr())
	return served(s.ServeTLS(l, "", ""))
}

// served is the error of a server, if it was not closed.
func served(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// getter is a client of HTTP with one connection.
type getter struct {
	client    *http.Client
	transport *http.Transport
	request   *http.Request
	major     int // of the version that is expected
	answer    []byte
	cancel    context.CancelFunc
}

func newGetter(t *http.Transport, url string, major int) (load.Conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	t.MaxConnsPerHost = 1
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	return &getter{&http.Client{Transport: t}, t, request, major, make([]byte, len(message)), cancel}, nil
}

func (g *getter) Ask() error {
	r, err := g.client.Do(g.request)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK || r.ProtoMajor != g.major {
		return fmt.Errorf("%s %s, want HTTP/%d and status 200", r.Proto, r.Status, g.major)
	}
	if _, err := io.ReadFull(r.Body, g.answer); err != nil {
		return err
	}
	// Only a body that was read to its end leaves the connection for the next request.
	if n, err := r.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return errAnswer
	}
	return check(g.answer)
}

func (g *getter) Close() error {
	g.cancel()
	g.transport.CloseIdleConnections()
	return nil
}

// dialHTTP returns a client that opens its connection with the first request.
func dialHTTP(_ context.Context, n unet.Network, address string) (load.Conn, error) {
	return newGetter(&http.Transport{DialContext: n.DialContext}, "http://"+address+"/", 1)
}

// dialH2 is dialHTTP for serveH2.
func dialH2(_ context.Context, n unet.Network, address string) (load.Conn, error) {
	return newGetter(&http.Transport{DialContext: n.DialContext, ForceAttemptHTTP2: true, TLSClientConfig: unverified()}, "https://"+address+"/", 2)
}
