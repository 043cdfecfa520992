package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet"
)

// shutdownTimeout is how long the program waits after SIGTERM for requests that have begun.
const shutdownTimeout = 10 * time.Second

// serve answers requests until ctx ends, and then completes those that have begun.
func serve(ctx context.Context, network *unet.Opened, address string) error {
	listener, err := network.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s := &site{host: network.Host()}
	server := &http.Server{
		Handler:           s.handler(),
		ConnContext:       s.connected,
		ReadHeaderTimeout: 10 * time.Second,
	}
	shut := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		shut <- server.Shutdown(ctx)
	})()
	fmt.Printf("serving on http://%v/\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	err = <-shut
	fmt.Printf("answered %d requests on %d connections\n", s.requests.Load(), s.connections.Load())
	return err
}

// site has the handlers and counts what they answer.
type site struct {
	host        *unet.Host // nil: the kernel
	requests    atomic.Int64
	connections atomic.Int64
}

// connKey is the key of the connection in a request's context.
type connKey struct{}

func (s *site) connected(ctx context.Context, c net.Conn) context.Context {
	s.connections.Add(1)
	return context.WithValue(ctx, connKey{}, c)
}

func (s *site) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.hello)
	mux.HandleFunc("GET /bytes/{n}", s.bytes)
	mux.HandleFunc("POST /upload", s.upload)
	mux.HandleFunc("GET /counters", s.counters)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		mux.ServeHTTP(w, r)
	})
}

func (s *site) hello(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "Hello %s. This server has had %d requests on %d connections.\n", r.RemoteAddr, s.requests.Load(), s.connections.Load())
	c, ok := r.Context().Value(connKey{}).(*unet.TCPConn)
	if !ok {
		fmt.Fprintln(w, "This is the kernel's TCP.")
		return
	}
	i := c.Info()
	fmt.Fprintf(w, "This is unet's TCP: %v, mss %d, timestamps %v, window scale %v, SACK %v.\n", i.State, i.SendMSS, i.Timestamps, i.WindowScale, i.SACK)
	fmt.Fprintf(w, "round trip %v, varies by %v, retransmission timeout %v\n", i.RTT, i.RTTVar, i.RTO)
	fmt.Fprintf(w, "segments   %d received, %d sent, %d of them again\n", i.SegmentsReceived, i.SegmentsSent, i.Retransmissions)
	fmt.Fprintf(w, "bytes      %d received, %d acknowledged by the peer\n", i.BytesReceived, i.BytesAcked)
}

// bytes answers with n bytes; net/http handles ranges and HEAD.
func (s *site) bytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	if err != nil || n < 0 {
		http.Error(w, "want a number of bytes", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(lines{}, 0, n))
}

func (s *site) upload(w http.ResponseWriter, r *http.Request) {
	sum := sha256.New()
	n, err := io.Copy(sum, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "%d bytes sha256 %x\n", n, sum.Sum(nil))
}

// counters lists the counters that are not 0.
func (s *site) counters(w http.ResponseWriter, r *http.Request) {
	if s.host == nil {
		http.Error(w, "the kernel's counters are in nstat(8)", http.StatusNotFound)
		return
	}
	st, err := s.host.Stats()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, "%12d kicks (system calls to send)\n", st.Kicks)
	fmt.Fprintf(w, "%12d frames dropped by the kernel for want of room\n", st.KernelRxDropped+st.KernelRxRingFull+st.KernelFillRingEmpty)
	for _, c := range s.host.Counters() {
		if c.Value != 0 {
			fmt.Fprintf(w, "%12d %s\n", c.Value, c.Name)
		}
	}
}
