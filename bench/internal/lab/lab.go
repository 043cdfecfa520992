package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// Config says what a lab needs. Pairs that nothing is measured on are not made.
type Config struct {
	Unetd     string // the daemon's executable
	Muxed     bool   // make the muxed pair
	Crowd     bool   // make the crowded pair
	Plain     bool   // make the plain pair
	Impaired  bool   // with impaired links between the hosts, see Goodput
	Bulk      []Net  // make a pair for each
	ClientCPU int
	ServerCPU int
}

// Daemons reports whether the lab starts unetd.
func (c Config) Daemons() bool {
	return c.Muxed || c.Crowd || slices.ContainsFunc(c.Bulk, Net.muxed)
}

// Lab is up to three pairs of hosts. It runs one measurement at a time.
type Lab struct {
	cfg    Config
	dir    string   // of the daemons' sockets and policy
	pins   *os.File // the BPF file system in which they pin, for as long as this is open
	self   *os.File // this executable
	plain  *netlab.Pair
	muxed  *site
	crowd  *site
	bulk   map[Net]*site
	serial uint32 // of measurements

	plainLink *impair.Link // of plain, if it is impaired
}

// Open makes the hosts and starts the daemons. The caller closes the lab.
func Open(ctx context.Context, cfg Config) (_ *Lab, err error) {
	l := &Lab{cfg: cfg}
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
		if l.plain, l.plainLink, err = l.cable(netlab.Config{}); err != nil {
			return nil, err
		}
	}
	if cfg.Daemons() {
		if err := l.makeDir(); err != nil {
			return nil, err
		}
	}
	if cfg.Muxed {
		if l.muxed, err = l.openSite(ctx, plan.Pair, netlab.Config{}); err != nil {
			return nil, err
		}
	}
	if cfg.Crowd {
		if l.crowd, err = l.openSite(ctx, plan.Crowd, netlab.Config{}); err != nil {
			return nil, err
		}
		if err := l.crowd.fill(ctx); err != nil {
			return nil, err
		}
	}
	for _, n := range cfg.Bulk {
		if err := l.openBulk(ctx, n); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// policy lets the children, who are nobody, have what they measure, and this
// process a crowd.
const policy = `# of unetbench
rules:
  - name: crowd
    users: [0]
    tags: ["msg:*"]
    endpoints: 1000
    memory: 16GiB
  - name: benchmark
    users: [%d]
    tags: ["udp:*:*", "tcp:*:*", "addr:*", "msg:*"]
    endpoints: 8
    memory: 1GiB
    trusted: true
`

// makeDir makes the directory for what the daemons need.
func (l *Lab) makeDir() (err error) {
	if l.dir, err = os.MkdirTemp("", "unetbench-"); err != nil {
		return err
	}
	if err := os.Chmod(l.dir, 0o711); err != nil { // the children pass through
		return err
	}
	if err := os.WriteFile(l.policy(), fmt.Appendf(nil, policy, netlab.NobodyID), 0o600); err != nil {
		return err
	}
	l.pins, err = netlab.OpenBPFFS("0700")
	return err
}

func (l *Lab) policy() string { return filepath.Join(l.dir, "policy.yaml") }

// Close stops the daemons and takes everything down.
func (l *Lab) Close() error {
	var errs []error
	for _, s := range []*site{l.muxed, l.crowd} {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	if l.plainLink != nil {
		errs = append(errs, l.plainLink.Close())
	}
	for _, s := range l.bulk {
		errs = append(errs, s.close())
	}
	if l.plain != nil {
		errs = append(errs, l.plain.Close())
	}
	if l.self != nil {
		errs = append(errs, l.self.Close())
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	if l.pins != nil {
		errs = append(errs, l.pins.Close())
	}
	*l = Lab{}
	return errors.Join(errs...)
}

// side is one process of a measurement: where it runs, and what it is to do.
type side struct {
	host *netlab.Host
	job  workload.Job
}

// own is an address in the subnet of a host that nobody has.
func own(h *netlab.Host) netip.Addr {
	a := h.Addr.Addr().As4()
	a[3] += 100
	return netip.AddrFrom4(a)
}

// sides are client and server of j. Ports and tags are new ones each time:
// what the last measurement held may still be on its way back.
func (l *Lab) sides(t transport.Transport, place string, j workload.Job) (client, server side, err error) {
	pair, socket := l.plain, func(*netlab.Host) string { return "" }
	if j.MTU > 0 {
		if s := l.bulk[Net{t.Network, j.MTU}]; s != nil {
			pair, socket = s.pair, s.socket
		}
	} else if t.Network == transport.Muxed {
		s := l.muxed
		if place == plan.Crowd {
			s = l.crowd
		}
		if s != nil {
			pair, socket = s.pair, s.socket
		}
	}
	if pair == nil {
		return client, server, fmt.Errorf("BUG: no hosts for %s %s", t.Name, place)
	}
	client.host, server.host = pair.A, pair.B
	if place == plan.Local {
		server.host = pair.A
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
	a, b := address(client.host, number), address(server.host, number+1)
	j.Transport = t.Name
	client.job, server.job = j, j
	if j.Own {
		a.Own = own(client.host)
	}
	client.job.Role, client.job.Local, client.job.Remote, client.job.Socket = workload.Client, a, b, socket(client.host)
	server.job.Role, server.job.Local, server.job.Remote, server.job.Socket = workload.Server, b, a, socket(server.host)
	return client, server, nil
}
