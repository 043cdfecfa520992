//go:build linux

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"
)

const (
	headerTimeout = 5 * time.Second
	answerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	stopTimeout   = time.Second
)

// ErrAddress is the error for what is no address at all.
var ErrAddress = errors.New("want HOST:PORT or unix:PATH")

// Listen listens at unix:PATH or HOST:PORT. A unix socket that nobody listens on is replaced; who may
// connect to it is decided by its folder.
func Listen(addr string) (net.Listener, error) {
	path, isPath := strings.CutPrefix(addr, "unix:")
	if !isPath {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, fmt.Errorf("--metrics %s: %w", addr, ErrAddress)
		}
		ln, err := net.Listen("tcp", addr)
		return ln, explain(addr, err)
	}
	path, err := filepath.Abs(path) // else a path with a leading @ is in the abstract namespace, which has no permissions
	if err != nil {
		return nil, explain(addr, err)
	}
	ln, err := net.Listen("unix", path)
	if errors.Is(err, unix.EADDRINUSE) && abandoned(path) {
		if err := os.Remove(path); err != nil {
			return nil, explain(addr, err)
		}
		ln, err = net.Listen("unix", path)
	}
	if err == nil {
		if err = os.Chmod(path, 0o666); err != nil {
			ln.Close()
		}
	}
	return ln, explain(addr, err)
}

// abandoned: the socket's process has ended.
func abandoned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

// explain is one line about an error of --metrics; nil for nil.
func explain(addr string, err error) error {
	if err == nil {
		return nil
	}
	why := err
	var op *net.OpError
	if errors.As(err, &op) {
		why = op.Err
	}
	return fmt.Errorf("cannot serve metrics at %s: %w: choose another --metrics", addr, why)
}

// Serve answers scrapes of source on ln in the background, until stop, which closes ln.
func Serve(ln net.Listener, source Source, also Process) (stop func()) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(source, also), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", byTurns(promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "unetd: /metrics") })
	peers := newPeers(ln)
	server := &http.Server{Handler: mux, ConnState: changed, ConnContext: withPeer, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0)} // a peer could fill the log
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(peers) // ends with stop
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close()
		}
		<-done
	}
}
