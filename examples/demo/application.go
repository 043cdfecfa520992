//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
)

// The port at which the application serves, its port for kernel sockets at 127.0.0.1, and its message tag.
const (
	port       = 7000
	kernelPort = 7001
	messageTag = 7
)

// Lines that the application writes. The demonstration waits for them.
const (
	saysListening = "listening on "
	saysGone      = "unetd is gone"
	saysBack      = "unetd is back"
	saysRefused   = "refused: "
	saysSent      = "sent"
	saysMeasured  = "by memory "
)

// Commands on the standard input of the application, one a line. It ends at the end of its input.
const (
	tellListen = "listen"  // PORT: listen there, too, over UDP
	tellForge  = "message" // ADDRESS TAG: send a message to that host, as if from this tag
)

// Application is a service on an endpoint: it echoes what TCP connections and UDP datagrams send to its port.
func Application(ctx context.Context, socket string, in io.Reader, out io.Writer) error {
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	os.WriteFile("/proc/self/comm", []byte("application"), 0) // the name that unetd status shows; it would be exe
	say("uid %d, %s", os.Getuid(), capabilities())
	host, err := unet.Open(ctx, unet.Config{Socket: socket})
	if err != nil {
		return err
	}
	defer host.Close()
	notices := host.Notices(ctx)
	go func() {
		for n := range notices {
			switch n.Kind {
			case endpoint.NoticeUnetdGone:
				say(saysGone)
			case endpoint.NoticeUnetdBack:
				say(saysBack)
			}
		}
	}()
	listener, err := host.Listen(ctx, "tcp", fmt.Sprint(":", port))
	if err != nil {
		return err
	}
	datagrams, err := host.ListenPacket(ctx, "udp", fmt.Sprint(":", port))
	if err != nil {
		return err
	}
	kernel, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", kernelPort))
	if err != nil {
		return err
	}
	defer kernel.Close()
	go serveConnections(listener)
	go serveConnections(kernel)
	go serveDatagrams(datagrams)
	say(saysListening+"tcp and udp %v", listener.Addr())
	for lines := bufio.NewScanner(in); lines.Scan(); {
		switch words := strings.Fields(lines.Text()); words[0] {
		case tellListen:
			if _, err := host.ListenPacket(ctx, "udp", ":"+words[1]); err == nil {
				return errors.New("port " + words[1] + " was granted")
			} else {
				say(saysRefused+"%v", err)
			}
		case tellForge:
			if err := forge(ctx, socket, netip.MustParseAddr(words[1]), words[2]); err != nil {
				return err
			}
			say(saysSent)
		}
	}
	return nil
}

// Neighbour is a client of the application on the same host. It measures round trips to it by an endpoint of its own, and by
// kernel sockets over lo, with the same code. It ends at the end of in.
func Neighbour(ctx context.Context, socket, at string, in io.Reader, out io.Writer) error {
	host, err := unet.Open(ctx, unet.Config{Socket: socket})
	if err != nil {
		return err
	}
	defer host.Close()
	conn, err := host.Dial("tcp", at)
	if err != nil {
		return err
	}
	kernel, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", kernelPort))
	if err != nil {
		return err
	}
	defer kernel.Close()
	deadline := time.Now().Add(within)
	if err := errors.Join(conn.SetDeadline(deadline), kernel.SetDeadline(deadline)); err != nil {
		return err
	}
	for !byMemory(host) { // until the path is there, frames go by the ports
		if err := roundTrip(conn, "hello"); err != nil {
			return err
		}
	}
	const rounds, each = 40, 100
	var took [2][]time.Duration
	for range rounds {
		for i, c := range []net.Conn{conn, kernel} {
			for range each {
				start := time.Now()
				if err := roundTrip(c, "hello"); err != nil {
					return err
				}
				took[i] = append(took[i], time.Since(start))
			}
		}
	}
	var us [2]float64 // medians
	for i := range took {
		slices.Sort(took[i])
		us[i] = float64(took[i][rounds*each/2]) / float64(time.Microsecond)
	}
	fmt.Fprintf(out, saysMeasured+"%.2f us, by kernel sockets over lo %.2f us: %.1f times as long\n", us[0], us[1], us[1]/us[0])
	_, err = io.Copy(io.Discard, in)
	return err
}

// byMemory reports whether a host has received frames by memory.
func byMemory(h *unet.Host) bool {
	for _, c := range h.Counters() {
		if c.Name == "path_frames_received" {
			return c.Value > 0
		}
	}
	return false
}

// capabilities are those of the process, as proc(5) has them.
func capabilities() string {
	status, err := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if set, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return "capabilities " + strings.TrimSpace(set)
		}
	}
	return fmt.Sprint("capabilities unknown: ", err)
}

func serveConnections(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // the host is closed
		}
		go func() {
			defer conn.Close()
			io.Copy(conn, conn)
		}()
	}
}

func serveDatagrams(c net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		c.WriteTo(buf[:n], from) // a lost answer is like a lost datagram
	}
}

// forge opens an endpoint with a message tag, and sends a message that has another tag as its source.
func forge(ctx context.Context, socket string, to netip.Addr, from string) error {
	var tag uint32
	if _, err := fmt.Sscan(from, &tag); err != nil {
		return err
	}
	grant, lease, err := control.Open(ctx, socket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(messageTag)}})
	if err != nil {
		return err
	}
	defer lease.Close()
	ep, err := datapath.Attach(grant, datapath.Config{Lease: lease})
	if err != nil {
		return errors.Join(err, grant.Close())
	}
	defer ep.Close()
	ch, err := ep.Channel(ctx, lease, to, messageTag, tag)
	if err != nil {
		return err
	}
	if err := ep.Write(&ch, []byte("forged")); err != nil {
		return err
	}
	return ep.Flush()
}
