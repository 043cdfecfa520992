package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/wire"
)

// Condition is what an operator does while endpoints are measured.
type Condition string

const (
	PlainOperation Condition = "plain"         // nothing
	Scraped        Condition = "scraped"       // the processes publish their state, and the metrics of both hosts are scraped
	CaptureOther   Condition = "capture-other" // the frames of another endpoint of the client's host are captured
	CaptureThis    Condition = "capture-this"  // those of the client's endpoint are
	RateLimited    Condition = "rate-limited"  // both endpoints have limits that they do not reach
)

// Conditions are all, in the order of the table.
var Conditions = []Condition{PlainOperation, Scraped, RateLimited, CaptureOther, CaptureThis}

// unreached are rates far above those of round trips.
const unreached = "    rates: {endpoint: {packets: 10000000/s, bits: 10Gbit/s}, user: {packets: 20000000/s, bits: 20Gbit/s}}\n"

// Observed is what Operate has seen beside the measurement.
type Observed struct {
	Scrapes          int    // of both hosts
	Captured, Missed uint64 // packets; missed are those that the capture's buffer had no room for
}

// Operate runs j once over t under a condition. The metrics are scraped at such an interval.
func (l *Lab) Operate(ctx context.Context, t transport.Transport, c Condition, j workload.Job, interval time.Duration) (Outcome, Observed, error) {
	rates := ""
	if c == RateLimited {
		rates = unreached
	}
	if err := l.setRates(ctx, rates); err != nil {
		return Outcome{}, Observed{}, err
	}
	j.Published = c == Scraped
	o := &operation{ctx: ctx, lab: l, condition: c, interval: interval}
	out, err := l.Measure(ctx, t, plan.Pair, j, o)
	if err != nil {
		o.abandon()
	}
	return out, o.seen, err
}

// setRates changes the policy of the daemons.
func (l *Lab) setRates(ctx context.Context, rates string) error {
	if rates == l.rates {
		return nil
	}
	if err := l.writePolicy(rates); err != nil {
		return err
	}
	for _, h := range []*netlab.Host{l.muxed.pair.A, l.muxed.pair.B} {
		if _, err := control.Reload(ctx, l.muxed.socket(h)); err != nil {
			return fmt.Errorf("unetd on host %s: %w", h.Name, err)
		}
	}
	return nil
}

// operation is the Observer of Operate: the operator.
type operation struct {
	ctx       context.Context
	lab       *Lab
	condition Condition
	interval  time.Duration
	seen      Observed
	client    int // its process
	end       func() error
}

func (o *operation) Start(pids []int) (err error) {
	o.client = pids[0]
	switch o.condition {
	case Scraped:
		o.end = o.scrape()
	case CaptureOther:
		o.end, err = o.capture(os.Getpid())
	case CaptureThis:
		o.end, err = o.capture(o.client)
	case RateLimited:
		var e endpoint.Info
		if e, err = o.find(o.client); err == nil && e.Rates == (endpoint.Rates{}) {
			err = errors.New("BUG: the endpoint has no rate limit")
		}
		o.end = o.notReached
	}
	return err
}

func (o *operation) Stop() error {
	if o.end == nil {
		return nil
	}
	end := o.end
	o.end = nil
	return end()
}

// abandon ends what runs beside a measurement that has failed.
func (o *operation) abandon() { _ = o.Stop() }

// find is the endpoint of a process on the client's host.
func (o *operation) find(pid int) (endpoint.Info, error) {
	s := o.lab.muxed
	all, err := control.List(o.ctx, s.socket(s.pair.A))
	if err != nil {
		return endpoint.Info{}, err
	}
	i := slices.IndexFunc(all, func(e endpoint.Info) bool { return e.PID == pid })
	if i < 0 {
		return endpoint.Info{}, fmt.Errorf("unetd lists no endpoint of process %d", pid)
	}
	return all[i], nil
}

// notReached checks that no frame was dropped by a limit.
func (o *operation) notReached() error {
	e, err := o.find(o.client)
	if err == nil && e.TxRateEndpoint+e.TxRateUser > 0 {
		err = fmt.Errorf("%d frames were beyond the rate limit, which is not to be reached", e.TxRateEndpoint+e.TxRateUser)
	}
	return err
}

// scrape reads the metrics of both hosts, the first time after half an interval, until the function
// that it returns is called.
func (o *operation) scrape() (end func() error) {
	ctx, cancel := context.WithCancel(o.ctx)
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			s := o.lab.muxed
			a, b := newScraper(s.metrics(s.pair.A)), newScraper(s.metrics(s.pair.B))
			defer a.CloseIdleConnections()
			defer b.CloseIdleConnections()
			for next := time.After(o.interval / 2); ; {
				select {
				case <-next:
					next = time.After(o.interval)
				case <-ctx.Done():
					return nil
				}
				for _, c := range []*http.Client{a, b} {
					if _, _, err := scrapeOnce(o.ctx, c); err != nil {
						return err
					}
					o.seen.Scrapes++
				}
			}
		}()
	}()
	return func() error {
		cancel()
		return <-done
	}
}

// newScraper is a client of the metrics at a unix socket.
func newScraper(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
}

// scrapeOnce is how many bytes the metrics are, and how long they take.
func scrapeOnce(ctx context.Context, c *http.Client) (n int, took time.Duration, err error) {
	begin := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://unetd/metrics", nil)
	if err != nil {
		return 0, 0, err
	}
	answer, err := c.Do(r)
	if err != nil {
		return 0, 0, fmt.Errorf("scrape: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.200s", answer.StatusCode, text)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("scrape: %w", err)
	}
	return len(text), time.Since(begin), nil
}

// capture starts unetd capture on the endpoint of a process, and returns when it runs.
func (o *operation) capture(pid int) (end func() error, err error) {
	e, err := o.find(pid)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd := exec.Command(o.lab.cfg.Unetd, "capture", strconv.FormatUint(e.ID, 10), "-w", os.DevNull, "--bpffs", netlab.PathTo(o.lab.pins))
	cmd.SysProcAttr, cmd.Stderr = netlab.Bound(), w
	if err := o.lab.muxed.pair.A.Start(cmd); err != nil {
		r.Close()
		return nil, fmt.Errorf("start unetd capture: %w", err)
	}
	w.Close()
	said := bufio.NewReader(r)
	finish := func() error {
		defer r.Close()
		kill := time.AfterFunc(stopTimeout, func() { cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Process.Signal(syscall.SIGINT) // an error means that it has exited
		text, err := io.ReadAll(said)
		if err := errors.Join(cmd.Wait(), err); err != nil {
			return fmt.Errorf("unetd capture: %w: %s", err, strings.TrimSpace(string(text)))
		}
		m := captured.FindSubmatch(text)
		if m == nil {
			return fmt.Errorf("unetd capture does not say what it has captured: %s", strings.TrimSpace(string(text)))
		}
		n, err1 := strconv.ParseUint(string(m[1]), 10, 64)
		missed, err2 := strconv.ParseUint(string(m[2]), 10, 64)
		o.seen.Captured, o.seen.Missed = n, missed
		return errors.Join(err1, err2)
	}
	if line, err := said.ReadString('\n'); err != nil || !strings.HasPrefix(line, "capturing ") {
		return nil, errors.Join(fmt.Errorf("unetd capture: %s", strings.TrimSpace(line)), finish())
	}
	return finish, nil
}

var captured = regexp.MustCompile(`(\d+) packets captured, (\d+) lost`)

// ScrapedSize is the number of endpoints of Scrape.
const ScrapedSize = 256

// openScraped makes a host with many endpoints, each with a full table of sockets.
func (l *Lab) openScraped(ctx context.Context) (err error) {
	if l.scraped, err = l.openSite("scraped", netlab.Config{}); err != nil {
		return err
	}
	h := l.scraped.pair.A
	if err := l.startDaemons(ctx, l.scraped, h); err != nil {
		return err
	}
	table, err := datapath.NewConnections()
	if err != nil {
		return err
	}
	l.scraped.idle = append(l.scraped.idle, table.Close)
	for i := range table.Records() {
		table.Records()[i] = wire.Connection{LocalPort: 7000, RemotePort: 9, Protocol: wire.ProtocolTCP, State: 4, RTT: 1000, Sent: uint64(i)}
	}
	for range ScrapedSize {
		_, closeEndpoint, err := l.scraped.open(ctx, h, endpoint.Request{Geometry: idle, Connections: table.File()})
		if err != nil {
			return fmt.Errorf("endpoint on host %s: %w", h.Name, err)
		}
		l.scraped.idle = append(l.scraped.idle, closeEndpoint)
	}
	return nil
}

// Scrape scrapes the metrics of the host with many endpoints once.
func (l *Lab) Scrape(ctx context.Context) (n int, took time.Duration, err error) {
	c := newScraper(l.scraped.metrics(l.scraped.pair.A))
	defer c.CloseIdleConnections()
	return scrapeOnce(ctx, c)
}
