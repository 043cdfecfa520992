package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
)

// Config is what a lab needs.
type Config struct {
	Unetd     string // the daemon's executable
	Mode      string // of the daemons' uplinks, as unetd's --mode
	Sites     []Site // pairs of hosts, each once
	IPv6      bool   // give the hosts IPv6 addresses, too
	ClientCPU int
	ServerCPU int
}

// Site is a pair of hosts.
type Site struct {
	Network transport.Network
	MTU     int  // 1500 if zero
	Crowd   bool // with CrowdSize idle endpoints on each host
}

// SiteOf is where a case of a transport is measured. Whatever is measured on one host is on the same one, which
// unetd serves.
func SiteOf(t transport.Transport, c workload.Case) Site {
	s := Site{Network: t.Network, MTU: c.MTU, Crowd: c.Place == workload.Crowd}
	if c.Place == workload.Local {
		s.Network = transport.Muxed
	}
	return s
}

func (s Site) muxed() bool { return s.Network == transport.Muxed }

// Daemons reports whether the lab starts unetd.
func (c Config) Daemons() bool { return slices.ContainsFunc(c.Sites, Site.muxed) }

// Lab has the pairs of hosts that its [Config] asks for. It runs one measurement at a time.
type Lab struct {
	cfg    Config
	dir    string   // of the daemons' sockets and policy
	pins   *os.File // the BPF file system in which the daemons pin, while this is open
	self   *os.File // this executable
	sites  map[Site]*site
	serial uint32 // of measurements
}

// Open makes the hosts and starts the daemons. The caller closes the lab.
func Open(ctx context.Context, cfg Config) (_ *Lab, err error) {
	l := &Lab{cfg: cfg, sites: map[Site]*site{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Children execute the open file: uid nobody may not have access to its directory.
	if l.self, err = os.Open(self); err != nil {
		return nil, err
	}
	if cfg.Daemons() {
		if err := l.makeDir(); err != nil {
			return nil, err
		}
	}
	for _, s := range cfg.Sites {
		if err := l.openSite(ctx, s); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// policy permits the children, of uid nobody, the endpoints and tags that they measure, and this
// process the endpoints of a crowd.
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

// makeDir makes the directory of the daemons' sockets and policy.
func (l *Lab) makeDir() (err error) {
	if l.dir, err = os.MkdirTemp("", "unetbench-"); err != nil {
		return err
	}
	if err := os.Chmod(l.dir, 0o711); err != nil { // the children have to reach the sockets
		return err
	}
	if err := os.WriteFile(l.policy(), fmt.Appendf(nil, policy, netlab.NobodyID), 0o600); err != nil {
		return err
	}
	l.pins, err = netlab.OpenBPFFS("0700")
	return err
}

func (l *Lab) policy() string { return filepath.Join(l.dir, "policy.yaml") }

// Close stops the daemons and removes everything.
func (l *Lab) Close() error {
	var errs []error
	for _, s := range l.sites {
		errs = append(errs, s.close())
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

// CrowdSize is the number of idle endpoints on each host of the crowded pair. With the one
// that is measured there are 256.
const CrowdSize = 255

// site is a pair of hosts, mostly with a daemon each.
type site struct {
	pair    *netlab.Pair
	sockets map[*netlab.Host]string // of the daemons
	daemons []*process
	idle    []func() error // closes an endpoint of the crowd
}

// openSite makes a pair of hosts. What it has opened when it fails is closed with the lab.
func (l *Lab) openSite(ctx context.Context, as Site) (err error) {
	ipv6 := l.cfg.IPv6 && as.muxed()
	s := &site{sockets: map[*netlab.Host]string{}}
	if s.pair, err = netlab.NewPair(netlab.Config{MTU: as.MTU, IPv6: ipv6, LinkLocal: ipv6}); err != nil {
		return err
	}
	l.sites[as] = s
	for _, h := range []*netlab.Host{s.pair.A, s.pair.B} {
		switch as.Network {
		case transport.Unsegmented:
			err = h.Do(func() error { return netlab.SetSegmentation(h.Interface, false) })
		case transport.Muxed:
			err = l.startDaemon(ctx, s, h, filepath.Join(l.dir, fmt.Sprintf("%d-%t-%s.sock", as.MTU, as.Crowd, h.Name)))
		}
		if err != nil {
			return err
		}
		for range CrowdSize {
			if !as.Crowd {
				break
			}
			_, closeEndpoint, err := s.open(ctx, h, endpoint.Request{Geometry: idle})
			if err != nil {
				return fmt.Errorf("crowd on host %s: %w", h.Name, err)
			}
			s.idle = append(s.idle, closeEndpoint)
		}
	}
	return nil
}

// idle is the geometry of an endpoint in the crowd, 512 KiB: the size of an idle endpoint
// does not matter, and five hundred of the default size take 4 GiB.
var idle = endpoint.Geometry{FrameCount: 256, FillSize: 128, CompletionSize: 128, RxSize: 128, TxSize: 128}

// open opens an endpoint with a message tag through the host's daemon, in this process,
// and measures how long that takes.
func (s *site) open(ctx context.Context, h *netlab.Host, req endpoint.Request) (took time.Duration, closeEndpoint func() error, err error) {
	req.Tags = []endpoint.Tag{endpoint.MessageTag(0)}
	begin := time.Now()
	grant, lease, err := control.Open(ctx, s.sockets[h], req)
	if err != nil {
		return 0, nil, err
	}
	return time.Since(begin), func() error { return errors.Join(grant.Close(), lease.Close()) }, nil
}

func (s *site) close() error {
	var errs []error
	for _, closeEndpoint := range s.idle {
		errs = append(errs, closeEndpoint())
	}
	for _, d := range s.daemons {
		errs = append(errs, d.stop())
	}
	return errors.Join(append(errs, s.pair.Close())...)
}

// OpenOnce measures how long it takes to open a default endpoint through unetd, alone or in
// the crowd, and closes it.
func (l *Lab) OpenOnce(ctx context.Context, crowd bool) (time.Duration, error) {
	s := l.sites[Site{Network: transport.Muxed, Crowd: crowd}]
	took, closeEndpoint, err := s.open(ctx, s.pair.A, endpoint.Request{})
	if err != nil {
		return 0, err
	}
	return took, closeEndpoint()
}

// Ports of measurements, below the kernel's ephemeral ones.
const firstPort, portSpan = 20000, 10000

// port is the first of two ports that no measurement has had for long: unetd may still be
// reclaiming those of the last one, and its connections may be in TIME-WAIT.
func (l *Lab) port() uint32 {
	l.serial++
	return firstPort + 2*(l.serial%(portSpan/2))
}

// loopback is the address of kernel sockets on one host.
var loopback = netip.MustParsePrefix("127.0.0.1/8")

// End is the host of one side, as its program sees it.
type End struct {
	workload.Address
	Socket string // of the host's unetd; empty if there is none
}

// startTimeout bounds the start of a daemon, and a measurement without its measured section.
const startTimeout = 60 * time.Second

// Run is a server and its client. The server has begun when it writes a line, and ends by SIGTERM. The
// client starts then, writes a line, and ends.
type Run struct {
	Site     Site
	Local    bool // both are on host A
	Loopback bool // with Local: at the address of lo
	IPv6     bool
	Pinned   bool // each to a processor
	Server   func(client, server End) Program
	Client   func(client, server End, pid int) Program // pid is the server's
	Started  func(pid int) error                       // nil, or called with each process before it gets its input
	Reports  bool                                      // the server writes a second line
	Timeout  time.Duration
}

// Run runs both sides, and returns what they have written.
func (l *Lab) Run(ctx context.Context, r Run) (client, server string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("took longer than %v", r.Timeout))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := l.sites[r.Site]
	if s == nil {
		return "", "", fmt.Errorf("BUG: no hosts %+v", r.Site)
	}
	a, b := s.pair.A, s.pair.B
	if r.Local {
		b = a
	}
	number := l.port()
	end := func(h *netlab.Host, n uint32) End {
		addr := h.Addr
		switch {
		case r.Local && r.Loopback:
			addr = loopback
		case r.IPv6:
			addr = h.Addr6
		}
		return End{workload.Address{UDP: netip.AddrPortFrom(addr.Addr(), uint16(n)), LinkAddr: h.LinkAddr, Tag: n}, s.sockets[h]}
	}
	here, there := end(a, number), end(b, number+1)
	hereCPU, thereCPU := netlab.AnyCPU, netlab.AnyCPU
	if r.Pinned {
		hereCPU, thereCPU = l.cfg.ClientCPU, l.cfg.ServerCPU
	}
	serving, err := r.Server(here, there).start(b, thereCPU, "server", r.Started)
	if err != nil {
		return "", "", err
	}
	defer func() {
		if err != nil {
			err = serving.finish(err)
		} else {
			err = serving.stop()
		}
	}()
	if _, err := serving.next(ctx); err != nil {
		return "", "", err
	}
	asking, err := r.Client(here, there, serving.pid()).start(a, hereCPU, "client", r.Started)
	if err != nil {
		return "", "", err
	}
	reported := make(chan string, 1)
	go func() { // a client without its server waits for long
		line, err := serving.next(ctx)
		if err != nil {
			fail(err)
		}
		reported <- line
	}()
	client, err = asking.next(ctx)
	if err = asking.finish(err); err != nil {
		return "", "", err
	}
	if r.Reports {
		if server = <-reported; server == "" {
			return "", "", context.Cause(ctx)
		}
	}
	return client, server, nil
}

// Outcome is what the two processes of a measurement reported.
type Outcome struct {
	Client, Server workload.Report
}

// Measure measures a case once, in two new processes. It calls started, if that is not nil, with each of
// them before its measured section.
func (l *Lab) Measure(ctx context.Context, c workload.Case, e workload.Effort, started func(pid int) error) (out Outcome, err error) {
	t, err := transport.ByName(c.Bench, c.Transport)
	if err != nil {
		return out, err
	}
	local := c.Place == workload.Local
	child := func(role workload.Role, from, to End) Program {
		j := workload.Job{Case: c, Effort: e, Role: role, Local: from.Address, Remote: to.Address, Socket: from.Socket}
		if role == workload.Client && (e.Address == workload.Own || local && t.Device) { // an unused address of the subnet
			own := from.UDP.Addr().AsSlice()
			own[len(own)-1] += 100
			j.Local.Own, _ = netip.AddrFromSlice(own)
		}
		return Program{File: l.self, Args: []string{"child"}, Input: j, Procs: c.Procs, Root: t.Privileged}
	}
	client, server, err := l.Run(ctx, Run{
		Site: SiteOf(t, c), Local: local, Loopback: !t.Granted, IPv6: t.IPv6, Pinned: c.Procs == 0,
		Server:  func(client, server End) Program { return child(workload.Server, server, client) },
		Client:  func(client, server End, _ int) Program { return child(workload.Client, client, server) },
		Started: started, Reports: true, Timeout: startTimeout + 2*e.Limit,
	})
	if err == nil {
		err = errors.Join(json.Unmarshal([]byte(client), &out.Client), json.Unmarshal([]byte(server), &out.Server))
	}
	if err != nil {
		return out, fmt.Errorf("%v: %w", c, err)
	}
	return out, nil
}

// Neighbours starts a program on each processor that computes until stop, which the caller calls.
func (l *Lab) Neighbours(ctx context.Context) (stop func() error, err error) {
	shell, err := os.Open("/bin/sh")
	if err != nil {
		return nil, err
	}
	defer shell.Close()
	cpus, err := netlab.Processors()
	if err != nil {
		return nil, err
	}
	var all []*process
	stop = func() error {
		var errs []error
		for _, r := range all {
			errs = append(errs, r.stop())
		}
		return errors.Join(errs...)
	}
	busy := Program{File: shell, Args: []string{"-c", "trap 'exit 0' TERM; echo begun; while :; do :; done"}}
	for _, cpu := range cpus {
		r, err := busy.start(l.sites[Site{Network: transport.Muxed}].pair.A, cpu, "neighbour", nil)
		if err == nil {
			all = append(all, r)
			_, err = r.next(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, stop())
		}
	}
	return stop, nil
}
