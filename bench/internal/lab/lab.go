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

	"github.com/unet-go/unet/bench/internal/perf"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// Config is what a lab needs.
type Config struct {
	Unetd     string      // the daemon's executable
	Mode      string      // of the daemons' uplinks, as unetd's --mode
	Events    perf.Events // to count of the children; zero: none
	Muxed     bool        // make the muxed pair
	Crowd     bool        // make the crowded pair
	Plain     bool        // make the plain pair
	IPv6      bool        // give the hosts of the muxed and the crowded pair IPv6 addresses, too
	Impaired  bool        // with impaired links between the hosts, see Goodput
	Routed    bool        // make two pairs with a router between them, one with a mux on it, see Kernel
	Bulk      []Net       // make a pair for each
	ClientCPU int
	ServerCPU int
}

// Daemons reports whether the lab starts unetd.
func (c Config) Daemons() bool {
	return c.Muxed || c.Crowd || c.Routed || slices.ContainsFunc(c.Bulk, Net.muxed)
}

func (l *Lab) counted() bool { return l.cfg.Events != perf.Events{} }

// Lab has the pairs of hosts that its [Config] asks for. It runs one measurement at a time.
type Lab struct {
	cfg    Config
	dir    string   // of the daemons' sockets and policy
	pins   *os.File // the BPF file system in which the daemons pin, while this is open
	self   *os.File // this executable
	plain  *site
	muxed  *site
	crowd  *site
	bulk   map[Net]*site
	bare   *site  // routed, without a mux
	routed *site  // with one
	serial uint32 // of measurements

}

// Open makes the hosts and starts the daemons. The caller closes the lab.
func Open(ctx context.Context, cfg Config) (_ *Lab, err error) {
	l := &Lab{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	// Children execute the open file: uid nobody may not have access to its directory.
	if l.self, err = os.Open("/proc/self/exe"); err != nil {
		return nil, err
	}
	if cfg.Plain {
		if l.plain, err = l.openSite("plain", netlab.Config{}); err != nil {
			return nil, err
		}
	}
	if cfg.Daemons() {
		if err := l.makeDir(); err != nil {
			return nil, err
		}
	}
	if cfg.Muxed {
		if l.muxed, err = l.openMuxed(ctx, plan.Pair, netlab.Config{IPv6: cfg.IPv6, LinkLocal: cfg.IPv6}); err != nil {
			return nil, err
		}
	}
	if cfg.Crowd {
		if l.crowd, err = l.openMuxed(ctx, plan.Crowd, netlab.Config{IPv6: cfg.IPv6, LinkLocal: cfg.IPv6}); err != nil {
			return nil, err
		}
		if err := l.crowd.fill(ctx); err != nil {
			return nil, err
		}
	}
	if cfg.Routed {
		if l.bare, err = l.openSite("bare", netlab.Config{Routed: true}); err != nil {
			return nil, err
		}
		if l.routed, err = l.openSite("routed", netlab.Config{Routed: true}); err != nil {
			return nil, err
		}
		if err := l.startDaemons(ctx, l.routed, l.routed.pair.Middle); err != nil {
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
	for _, s := range []*site{l.plain, l.muxed, l.crowd, l.bare, l.routed} {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	for _, s := range l.bulk {
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

// side is one process of a measurement: its host and its job.
type side struct {
	host       *netlab.Host
	job        workload.Job
	privileged bool // its process runs as root
}

// ownAddr is an unused address in the subnet of a host's address.
func ownAddr(a netip.Addr) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] += 100
	own, _ := netip.AddrFromSlice(b)
	return own
}

// sides are client and server of j. Ports and tags are new ones each time: unetd may still
// be reclaiming those of the last measurement.
func (l *Lab) sides(t transport.Transport, place string, j workload.Job) (client, server side, err error) {
	s, socket := l.plain, func(*netlab.Host) string { return "" }
	switch {
	case j.MTU > 0 || t.Network == transport.Direct:
		s = l.bulk[Net{t.Network, j.MTU}]
	case t.Network == transport.Muxed && place == plan.Crowd:
		s = l.crowd
	case t.Network == transport.Muxed:
		s = l.muxed
	}
	if s == nil {
		return client, server, fmt.Errorf("BUG: no hosts for %s %s", t.Name, place)
	}
	if t.Network == transport.Muxed {
		socket = s.socket
	}
	a, b := s.pair.A, s.pair.B
	if place == plan.Local {
		b = a
	}
	client, server = l.between(t, a, b, socket, j)
	return client, server, nil
}

// Ports of measurements, below the kernel's ephemeral ones.
const firstPort, portSpan = 20000, 10000

// between is sides for given hosts.
func (l *Lab) between(t transport.Transport, from, to *netlab.Host, socket func(*netlab.Host) string, j workload.Job) (client, server side) {
	client.host, server.host = from, to
	client.privileged, server.privileged = t.Privileged, t.Privileged
	l.serial++
	number := firstPort + 2*(l.serial%(portSpan/2))
	addr := func(h *netlab.Host) netip.Prefix {
		if t.IPv6 {
			return h.Addr6
		}
		return h.Addr
	}
	address := func(h *netlab.Host, n uint32) workload.Address {
		return workload.Address{
			UDP:      netip.AddrPortFrom(addr(h).Addr(), uint16(n)),
			LinkAddr: h.LinkAddr,
			Tag:      n,
		}
	}
	a, b := address(client.host, number), address(server.host, number+1)
	j.Transport = t.Name
	client.job, server.job = j, j
	if j.Own {
		a.Own = ownAddr(a.UDP.Addr())
	}
	client.job.Role, client.job.Local, client.job.Remote, client.job.Socket = workload.Client, a, b, socket(client.host)
	server.job.Role, server.job.Local, server.job.Remote, server.job.Socket = workload.Server, b, a, socket(server.host)
	return client, server
}

// Directions of the kernel's own traffic, seen from the router.
const (
	In      = "in"      // from host A to the router
	Out     = "out"     // from the router to host A
	Forward = "forward" // from host A through the router to host B
)

// Kernel runs j once over t, which uses the kernel's sockets, on hosts whose router has a mux on its interface to host
// A, or none.
func (l *Lab) Kernel(ctx context.Context, t transport.Transport, way string, mux bool, j workload.Job) (Outcome, error) {
	s := l.bare
	if mux {
		s = l.routed
	}
	ends := map[string][2]*netlab.Host{In: {s.pair.A, s.pair.Middle}, Out: {s.pair.Middle, s.pair.A}, Forward: {s.pair.A, s.pair.B}}[way]
	client, server := l.between(t, ends[0], ends[1], func(*netlab.Host) string { return "" }, j)
	return l.run(ctx, client, server, nil)
}

// CrowdSize is the number of idle endpoints on each host of the crowded pair. With the one
// that is measured there are 256.
const CrowdSize = 255

// site is a pair of hosts, mostly with a daemon each.
type site struct {
	name    string
	dir     string
	pair    *netlab.Pair
	link    *impair.Link // if it is impaired
	daemons []*daemon
	idle    []func() error // closes an endpoint of the crowd
}

func (l *Lab) openSite(name string, cfg netlab.Config) (_ *site, err error) {
	s := &site{name: name, dir: l.dir}
	if s.pair, s.link, err = l.newPair(cfg); err != nil {
		return nil, err
	}
	return s, nil
}

// openMuxed is openSite with a daemon on either host.
func (l *Lab) openMuxed(ctx context.Context, name string, cfg netlab.Config) (*site, error) {
	s, err := l.openSite(name, cfg)
	if err != nil {
		return nil, err
	}
	if err := l.startDaemons(ctx, s, s.pair.A, s.pair.B); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// startDaemons starts the daemons of a site.
func (l *Lab) startDaemons(ctx context.Context, s *site, hosts ...*netlab.Host) error {
	for _, h := range hosts {
		flags := []string{"--mode", l.cfg.Mode, "--socket", s.socket(h), "--policy", l.policy(), "--bpffs", netlab.PathTo(l.pins)}
		d, err := startDaemon(ctx, h, l.cfg.Unetd, flags...)
		if err != nil {
			return err
		}
		s.daemons = append(s.daemons, d)
	}
	return nil
}

// socket is that of a host's daemon.
func (s *site) socket(h *netlab.Host) string {
	return filepath.Join(s.dir, s.name+"-"+h.Name+".sock")
}

// idle is the geometry of an endpoint in the crowd, 512 KiB: the size of an idle endpoint
// does not matter, and five hundred of the default size take 4 GiB.
var idle = endpoint.Geometry{FrameCount: 256, FillSize: 128, CompletionSize: 128, RxSize: 128, TxSize: 128}

// fill opens the crowd.
func (s *site) fill(ctx context.Context) error {
	for _, h := range []*netlab.Host{s.pair.A, s.pair.B} {
		for range CrowdSize {
			_, closeEndpoint, err := s.open(ctx, h, endpoint.Request{Geometry: idle})
			if err != nil {
				return fmt.Errorf("crowd on host %s: %w", h.Name, err)
			}
			s.idle = append(s.idle, closeEndpoint)
		}
	}
	return nil
}

// open opens an endpoint with a message tag through the host's daemon, in this process,
// and measures how long that takes.
func (s *site) open(ctx context.Context, h *netlab.Host, req endpoint.Request) (took time.Duration, closeEndpoint func() error, err error) {
	req.Tags = []endpoint.Tag{endpoint.MessageTag(0)}
	begin := time.Now()
	grant, lease, err := control.Open(ctx, s.socket(h), req)
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
	if s.link != nil {
		errs = append(errs, s.link.Close())
	}
	if s.pair != nil {
		errs = append(errs, s.pair.Close())
	}
	return errors.Join(errs...)
}

// OpenOnce measures how long it takes to open a default endpoint through unetd, alone or in
// the crowd, and closes it.
func (l *Lab) OpenOnce(ctx context.Context, place string) (time.Duration, error) {
	s := l.muxed
	if place == plan.Crowd {
		s = l.crowd
	}
	took, closeEndpoint, err := s.open(ctx, s.pair.A, endpoint.Request{})
	if err != nil {
		return 0, err
	}
	return took, closeEndpoint()
}

// Net is a pair of hosts for bandwidth, or for transports without unetd that are not the kernel's.
type Net struct {
	Network transport.Network
	MTU     int // 1500 if zero
}

func (n Net) muxed() bool { return n.Network == transport.Muxed }

// openBulk makes such a pair, with daemons if it is a muxed one.
func (l *Lab) openBulk(ctx context.Context, n Net) (err error) {
	if l.bulk == nil {
		l.bulk = map[Net]*site{}
	}
	cfg := netlab.Config{MTU: n.MTU}
	if n.muxed() {
		s, err := l.openMuxed(ctx, fmt.Sprintf("mtu%d", n.MTU), cfg)
		if err == nil {
			l.bulk[n] = s
		}
		return err
	}
	pair, err := netlab.NewPair(cfg)
	if err != nil {
		return err
	}
	l.bulk[n] = &site{pair: pair}
	if n.Network != transport.Unsegmented {
		return nil
	}
	for _, h := range []*netlab.Host{pair.A, pair.B} {
		if err := h.Do(func() error { return netlab.SetSegmentation(h.Interface, false) }); err != nil {
			return err
		}
	}
	return nil
}
