package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/unet-go/unet/bench/internal/plan"
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

// SiteOf is where a transport is measured at a place of package plan, with an MTU. Whatever is
// measured on one host is on the same one, which unetd serves.
func SiteOf(t transport.Transport, place string, mtu int) Site {
	s := Site{Network: t.Network, MTU: mtu, Crowd: place == plan.Crowd}
	if place == plan.Local {
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
	// Children execute the open file: uid nobody may not have access to its directory.
	if l.self, err = os.Open("/proc/self/exe"); err != nil {
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

// side is one process of a measurement: its host and its job.
type side struct {
	host       *netlab.Host
	job        workload.Job
	privileged bool // its process runs as root
}

// sides are client and server of a job.
func (l *Lab) sides(t transport.Transport, place string, j workload.Job) (client, server side, err error) {
	s := l.sites[SiteOf(t, place, j.MTU)]
	if s == nil {
		return client, server, fmt.Errorf("BUG: no hosts for %s %s", t.Name, place)
	}
	a, b := s.pair.A, s.pair.B
	if place == plan.Local {
		b = a
	}
	number := l.port()
	address := func(h *netlab.Host, n uint32) workload.Address {
		addr := h.Addr
		if t.IPv6 {
			addr = h.Addr6
		}
		if place == plan.Local && !t.Granted {
			addr = loopback
		}
		return workload.Address{UDP: netip.AddrPortFrom(addr.Addr(), uint16(n)), LinkAddr: h.LinkAddr, Tag: n}
	}
	j.Transport = t.Name
	of := func(h *netlab.Host, role workload.Role, local, remote workload.Address) side {
		j := j
		j.Role, j.Local, j.Remote, j.Socket = role, local, remote, s.sockets[h]
		return side{h, j, t.Privileged}
	}
	here, there := address(a, number), address(b, number+1)
	server = of(b, workload.Server, there, here)
	if j.Own || place == plan.Local && t.Device { // an unused address of the subnet
		own := here.UDP.Addr().AsSlice()
		own[len(own)-1] += 100
		here.Own, _ = netip.AddrFromSlice(own)
	}
	return of(a, workload.Client, here, there), server, nil
}

// startTimeout bounds the start of a daemon, and a measurement without its measured section.
const startTimeout = 60 * time.Second

// Outcome is what the two processes of a measurement reported.
type Outcome struct {
	Client, Server workload.Report
}

// Observer looks at the two processes of a measurement from outside.
type Observer interface {
	// Start is called before the client begins. Both have opened their transports.
	Start(pids []int) error
	// Stop is called when both have reported, before they end.
	Stop() error
}

// Measure runs j once over t, in two new processes, with an observer if it is not nil.
func (l *Lab) Measure(ctx context.Context, t transport.Transport, place string, j workload.Job, o Observer) (Outcome, error) {
	client, server, err := l.sides(t, place, j)
	if err != nil {
		return Outcome{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout+2*j.Limit, errors.New("took too long"))
	defer cancel()
	out, err := l.measure(ctx, client, server, o)
	if err != nil {
		return out, fmt.Errorf("%s over %s: %w", j.Bench, t.Name, err)
	}
	return out, nil
}

func (l *Lab) measure(ctx context.Context, clientSide, serverSide side, o Observer) (out Outcome, err error) {
	serverCPU, clientCPU := l.cfg.ServerCPU, l.cfg.ClientCPU
	if clientSide.job.Procs > 0 {
		serverCPU, clientCPU = netlab.AnyCPU, netlab.AnyCPU
	}
	server, err := l.startChild(serverSide, serverCPU)
	if err != nil {
		return out, err
	}
	defer func() { err = server.finish(err) }()
	client, err := l.startChild(clientSide, clientCPU)
	if err != nil {
		return out, err
	}
	defer func() { err = client.finish(err) }()
	if err := errors.Join(server.send(serverSide.job), client.send(clientSide.job)); err != nil {
		return out, err
	}
	for _, p := range []*process{server, client} {
		if _, err := p.next(ctx); err != nil { // ready
			return out, err
		}
		if p == client && o != nil {
			if err := o.Start([]int{client.pid(), server.pid()}); err != nil {
				return out, err
			}
		}
		if err := p.send("go"); err != nil {
			return out, err
		}
	}
	// If the server fails its client gets no answers, so both are read.
	for left := 2; left > 0; left-- {
		p, report, line, ok := client, &out.Client, "", false
		select {
		case line, ok = <-client.lines:
		case line, ok = <-server.lines:
			p, report = server, &out.Server
		case <-ctx.Done():
			return out, context.Cause(ctx)
		}
		e, err := p.said(line, ok)
		if err == nil && e.Report == nil {
			err = p.failed(errors.New("no report"))
		}
		if err != nil {
			return out, err
		}
		*report = *e.Report
	}
	if o != nil {
		return out, o.Stop()
	}
	return out, nil
}

// Place is where a server of Serve listens, and the sockets of the daemons.
type Place struct {
	Address      string // with port
	ServerSocket string // empty on the kernel's sockets
	ClientSocket string
}

// Served are the two programs of Serve. The server has begun when it writes a line, and ends by
// SIGTERM. The client writes a line and ends.
type Served struct {
	Kernel bool // on the kernel's sockets: use the plain pair, otherwise the muxed one
	Local  bool // both on host A of the muxed pair, the kernel's sockets over lo
	Procs  int  // GOMAXPROCS. With 1 server and client are pinned to a processor each.
	Server func(Place) Program
	Client func(at Place, server int) Program // server is the process
	// Timeout limits the start of the server and all of the client.
	Timeout time.Duration
}

// Serve runs a server on host A until its client on host B, or A, has ended, and returns the client's line.
func (l *Lab) Serve(ctx context.Context, s Served) (line string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf("took longer than %v", s.Timeout))
	defer cancel()
	on := l.sites[Site{Network: transport.Muxed}]
	if s.Kernel && !s.Local {
		on = l.sites[Site{Network: transport.Plain}]
	}
	a, b := on.pair.A, on.pair.B
	addr := a.Addr
	if s.Local {
		b = a
		if s.Kernel {
			addr = loopback
		}
	}
	at := Place{fmt.Sprintf("%v:%d", addr.Addr(), l.port()), on.sockets[a], on.sockets[b]}
	serverCPU, clientCPU := netlab.AnyCPU, netlab.AnyCPU
	if s.Procs == 1 {
		serverCPU, clientCPU = l.cfg.ServerCPU, l.cfg.ClientCPU
	}
	server, err := s.Server(at).start(a, serverCPU, s.Procs)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	if _, err := server.next(ctx); err != nil {
		return "", err
	}
	client, err := s.Client(at, server.pid()).start(b, clientCPU, s.Procs)
	if err != nil {
		return "", err
	}
	line, err = client.next(ctx)
	return line, client.finish(err)
}

// Neighbours starts a program on each processor, which writes a line when it has begun and ends by SIGTERM.
// The caller calls stop.
func (l *Lab) Neighbours(ctx context.Context, p Program) (stop func() error, err error) {
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
	for _, cpu := range cpus {
		r, err := p.start(l.sites[Site{Network: transport.Muxed}].pair.A, cpu, 1)
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
