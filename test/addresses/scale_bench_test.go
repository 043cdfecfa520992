//go:build linux

package addresses

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

const (
	manyAddresses = 64
	manyRoutes    = 10_000
)

// scales are a pair of hosts with one address of each kind and the routes of these, and one with many of both.
func scales(b *testing.B) (plain, many *side) {
	plain, many = openSide(b), openSide(b)
	for _, d := range []*side{plain, many} {
		d.daemon = unetd.Serve(b, d.A, unetd.Options{})
	}
	var commands []string
	for i := range manyAddresses - 3 { // it has one of each kind
		if i%2 == 0 {
			commands = append(commands, fmt.Sprintf("addr add 10.60.%d.1/24 dev uplink", i))
		} else {
			commands = append(commands, fmt.Sprintf("addr add 2001:db8:60:%x::1/64 dev uplink nodad", i))
		}
	}
	testutil.Must(b, ip(many.A, strings.Join(commands, ";")))
	testutil.Must(b, ip(many.A, routesBy("add", "10.0.0.2")))
	return plain, many
}

// routesBy are commands that add or remove many routes, a third of them of IPv6.
func routesBy(verb, gateway string) string {
	var commands []string
	for i := range manyRoutes {
		if i%3 == 0 {
			commands = append(commands, fmt.Sprintf("route %s 2001:db8:%x::/48 via fe80::2 dev uplink", verb, 0x1000+i))
		} else {
			commands = append(commands, fmt.Sprintf("route %s 10.%d.%d.0/24 via %s", verb, 100+i/256, i%256, gateway))
		}
	}
	return strings.Join(commands, ";")
}

// BenchmarkManyAddresses opens a host and dials from it, in turn on an interface with one address and on one with 64
// and 10,000 routes. The metrics are medians: of the times with many, and of their ratios to those of the same turn with
// one.
func BenchmarkManyAddresses(b *testing.B) {
	unetd.Tool(b, "ip")
	plain, many := scales(b)
	times := map[*side][2][]time.Duration{}
	once := func(d *side, to string) (open, dial time.Duration) {
		start := time.Now()
		h, err := unet.Open(b.Context(), unet.Config{Socket: d.daemon.Socket})
		testutil.Must(b, err)
		defer h.Close()
		opened := time.Now()
		c, err := h.Dial("tcp", to)
		testutil.Must(b, err)
		open, dial = opened.Sub(start), time.Since(opened)
		testutil.Must(b, c.Close())
		return open, dial
	}
	to := map[*side]string{}
	for _, d := range []*side{plain, many} {
		l, err := d.peer.Listen(b.Context(), "tcp", ":0")
		testutil.Must(b, err)
		b.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		to[d] = net.JoinHostPort(d.B.Addr.Addr().String(), fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
		once(d, to[d])
	}
	for b.Loop() {
		for _, d := range []*side{plain, many} {
			open, dial := once(d, to[d])
			t := times[d]
			t[0], t[1] = append(t[0], open), append(t[1], dial)
			times[d] = t
		}
	}
	for what, name := range []string{"open", "dial"} {
		took, ratio := times[many][what], make([]float64, b.N)
		for i := range ratio {
			ratio[i] = float64(took[i]) / float64(times[plain][what][i])
		}
		slices.Sort(took)
		slices.Sort(ratio)
		b.ReportMetric(float64(took[b.N/2].Microseconds()), name+"-us")
		b.ReportMetric(ratio[b.N/2], name+"-ratio")
	}
}

// BenchmarkRouteChanges removes 10,000 routes and adds them, and measures the processor time of unetd meanwhile.
func BenchmarkRouteChanges(b *testing.B) {
	unetd.Tool(b, "ip")
	_, many := scales(b)
	h, err := unet.Open(b.Context(), unet.Config{Socket: many.daemon.Socket})
	testutil.Must(b, err)
	defer h.Close()
	before := processorTime(b, many.daemon.PID())
	for b.Loop() {
		testutil.Must(b, ip(many.A, routesBy("del", "10.0.0.2")))
		testutil.Must(b, ip(many.A, routesBy("add", "10.0.0.2")))
	}
	used := processorTime(b, many.daemon.PID()) - before
	b.ReportMetric(float64(used.Milliseconds())/float64(b.N), "unetd-ms/op")
}

// processorTime is what a process has used, to 10 ms (proc_pid_stat(5)).
func processorTime(b *testing.B, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	testutil.Must(b, err)
	var user, system int64
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	testutil.Must(b, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}
