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

// web is a web server whose only page is answer, and its clients: over HTTP/1.1, or over TLS, where net/http speaks
// HTTP/2.
type web struct {
	answer []byte
	h2     bool
}

func (w web) service() Service { return Service{w.serve, w.dial} }

func (w web) serve(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error {
	s := &http.Server{Handler: http.HandlerFunc(func(to http.ResponseWriter, _ *http.Request) {
		_, _ = to.Write(w.answer) // an error means that the client has gone
	})}
	if w.h2 {
		c, err := certificate()
		if err != nil {
			return err
		}
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{c}}
	}
	l, err := n.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	ready(l.Addr())
	if w.h2 {
		err = s.ServeTLS(l, "", "")
	} else {
		err = s.Serve(l)
	}
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

// dial returns a client that opens its connection with the first request.
func (w web) dial(_ context.Context, n unet.Network, address string) (load.Conn, error) {
	g := &getter{transport: &http.Transport{DialContext: n.DialContext, MaxConnsPerHost: 1}, major: 1, want: w.answer, answer: make([]byte, len(w.answer))}
	scheme := "http://"
	if w.h2 {
		scheme, g.major, g.transport.ForceAttemptHTTP2, g.transport.TLSClientConfig = "https://", 2, true, unverified()
	}
	g.client = &http.Client{Transport: g.transport}
	ctx, cancel := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+address+"/", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	g.request, g.cancel = request, cancel
	return g, nil
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
