package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unet-go/unet/internal/netlab"
)

// Place is where a server of Serve listens, and the sockets of the daemons.
type Place struct {
	Address string // with port
	ServerSocket,
	ClientSocket string // empty on the kernel's sockets
}

// Served are the two programs of Serve. The server has begun when it writes a line, and ends by
// SIGTERM.
type Served struct {
	Kernel bool // use the plain pair, otherwise the muxed one
	Procs  int  // GOMAXPROCS. With 1 server and client are pinned to a processor each.
	Server func(Place) Program
	Client func(at Place, server int) Program // server is the process
	// Timeout limits the start of the server and all of the client.
	Timeout time.Duration
}

// Serve runs a server on host A until its client on host B has ended, and returns the client's output.
func (l *Lab) Serve(ctx context.Context, s Served) (output []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf("took longer than %v", s.Timeout))
	defer cancel()
	l.serial++
	pair, at := l.plain.pair, Place{}
	if !s.Kernel {
		pair = l.muxed.pair
		at.ServerSocket, at.ClientSocket = l.muxed.socket(pair.A), l.muxed.socket(pair.B)
	}
	// A port that no earlier server had: its connections may be in TIME-WAIT.
	at.Address = fmt.Sprintf("%v:%d", pair.A.Addr.Addr(), firstPort+2*(l.serial%(portSpan/2)))
	serverCPU, clientCPU := netlab.AnyCPU, netlab.AnyCPU
	if s.Procs == 1 {
		serverCPU, clientCPU = l.cfg.ServerCPU, l.cfg.ClientCPU
	}
	server, err := s.Server(at).start(ctx, pair.A, serverCPU, s.Procs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	client := s.Client(at, server.cmd.Process.Pid)
	c := client.command(ctx, s.Procs)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := pair.B.StartOn(c, clientCPU); err != nil {
		return nil, fmt.Errorf("start %v: %w", client, err)
	}
	if err := c.Wait(); err != nil {
		return nil, client.failed(ctx, err, out.String()+errs.String())
	}
	return out.Bytes(), nil
}

// Neighbours starts a program on each processor, which writes a line when it has begun and ends by SIGTERM.
// The caller calls stop.
func (l *Lab) Neighbours(ctx context.Context, p Program) (stop func() error, err error) {
	cpus, err := netlab.Processors()
	if err != nil {
		return nil, err
	}
	var all []*running
	stop = func() error {
		var errs []error
		for _, r := range all {
			errs = append(errs, r.stop())
		}
		return errors.Join(errs...)
	}
	for _, cpu := range cpus {
		r, err := p.start(ctx, l.muxed.pair.A, cpu, 1)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		all = append(all, r)
	}
	return stop, nil
}
