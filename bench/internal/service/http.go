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

// web is a web server whose only page is answer, and its clients.
type web struct{ answer []byte }

func (w web) http() Service { return Service{w.serveHTTP, w.dialHTTP} }
func (w web) h2() Service   { return Service{w.serveH2, w.dialH2} }

func (w web) server() *http.Server {
	return &http.Server{Handler: http.HandlerFunc(func(to http.ResponseWriter, _ *http.Request) {
		_, _ = to.Write(w.answer) // an error means that the client has gone
	})}
}

func (w web) serveHTTP(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error {
	l, err := n.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s := w.server()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	ready(l.Addr())
	return served(s.Serve(l))
}

// serveH2 is serveHTTP with TLS, over which net/http speaks HTTP/2.
func (w web) serveH2(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error {
	c, err := certificate()
	if err != nil {
		return err
	}
	l, err := n.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s := w.server()
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
	want      []byte
	answer    []byte // as long as want
	cancel    context.CancelFunc
}

func (w web) newGetter(t *http.Transport, url string, major int) (load.Conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	t.MaxConnsPerHost = 1
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	return &getter{&http.Client{Transport: t}, t, request, major, w.answer, make([]byte, len(w.answer)), cancel}, nil
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
	return check(g.answer, g.want)
}

func (g *getter) Close() error {
	g.cancel()
	g.transport.CloseIdleConnections()
	return nil
}

// dialHTTP returns a client that opens its connection with the first request.
func (w web) dialHTTP(_ context.Context, n unet.Network, address string) (load.Conn, error) {
	return w.newGetter(&http.Transport{DialContext: n.DialContext}, "http://"+address+"/", 1)
}

// dialH2 is dialHTTP for serveH2.
func (w web) dialH2(_ context.Context, n unet.Network, address string) (load.Conn, error) {
	return w.newGetter(&http.Transport{DialContext: n.DialContext, ForceAttemptHTTP2: true, TLSClientConfig: unverified()}, "https://"+address+"/", 2)
}
