package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/unet-go/unet/cmd/unetbench/internal/transport"
	"github.com/unet-go/unet/cmd/unetbench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
)

// Config says what a lab needs. Pairs that nothing is measured on are not made.
type Config struct {
	Unetd     string // the daemon's executable
	Muxed     bool   // make the muxed pair
	Plain     bool   // make the plain pair
	ClientCPU int
	ServerCPU int
}

// Lab is two pairs of hosts. It runs one measurement at a time.
type Lab struct {
	cfg     Config
	dir     string   // of the daemons' sockets
	self    *os.File // this executable
	pairs   map[transport.Network]*netlab.Pair
	daemons []*daemon
	serial  uint32 // of measurements
}

// Open makes the hosts and starts the daemons. The caller closes the lab.
func Open(ctx context.Context, cfg Config) (_ *Lab, err error) {
	l := &Lab{cfg: cfg, pairs: map[transport.Network]*netlab.Pair{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	// Children execute the open file: uid nobody need not be able to reach
	// the directory that it lies in.
	if l.self, err = os.Open("/proc/self/exe"); err != nil {
		return nil, err
	}
	if cfg.Plain {
		if l.pairs[transport.Plain], err = netlab.NewPair(netlab.Config{}); err != nil {
			return nil, err
		}
	}
	if cfg.Muxed {
		if err := l.openMuxed(ctx); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *Lab) openMuxed(ctx context.Context) (err error) {
	if l.dir, err = os.MkdirTemp("", "unetbench-"); err != nil {
		return err
	}
	if err := os.Chmod(l.dir, 0o711); err != nil { // the children pass through
		return err
	}
	pair, err := netlab.NewPair(netlab.Config{})
	if err != nil {
		return err
	}
	l.pairs[transport.Muxed] = pair
	for _, h := range []*netlab.Host{pair.A, pair.B} {
		d, err := startDaemon(ctx, h, l.cfg.Unetd, l.socket(h))
		if err != nil {
			return err
		}
		l.daemons = append(l.daemons, d)
	}
	return nil
}

func (l *Lab) socket(h *netlab.Host) string { return filepath.Join(l.dir, h.Name+".sock") }

// Close stops the daemons and takes everything down.
func (l *Lab) Close() error {
	var errs []error
	for _, d := range l.daemons {
		errs = append(errs, d.stop())
	}
	for _, p := range l.pairs {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	if l.self != nil {
		errs = append(errs, l.self.Close())
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	l.daemons, l.pairs, l.self, l.dir = nil, nil, nil, ""
	return errors.Join(errs...)
}

// jobs makes the client's and the server's job of j. Ports and tags are new
// ones each time: what the last measurement held may still be on its way back.
func (l *Lab) jobs(t transport.Transport, j workload.Job) (client, server workload.Job, err error) {
	pair := l.pairs[t.Network]
	if pair == nil {
		return client, server, fmt.Errorf("BUG: no pair of hosts for %s", t.Name)
	}
	const first, span = 20000, 10000 // of ports, below the kernel's ephemeral ones
	l.serial++
	number := first + 2*(l.serial%(span/2))
	address := func(h *netlab.Host, n uint32) workload.Address {
		return workload.Address{
			UDP:      netip.AddrPortFrom(h.Addr.Addr(), uint16(n)),
			LinkAddr: h.LinkAddr,
			Tag:      n,
		}
	}
	a, b := address(pair.A, number), address(pair.B, number+1)
	j.Transport = t.Name
	client, server = j, j
	client.Role, client.Local, client.Remote, client.Socket = workload.Client, a, b, l.socket(pair.A)
	server.Role, server.Local, server.Remote, server.Socket = workload.Server, b, a, l.socket(pair.B)
	return client, server, nil
}
