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
	"strings"
	"sync"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
)

// The port at which the application serves, and its message tag.
const (
	port       = 7000
	messageTag = 7
)

// Lines that the application writes. The demonstration waits for them.
const (
	saysListening = "listening on "
	saysGone      = "unetd is gone"
	saysBack      = "unetd is back"
	saysRefused   = "refused: "
	saysSent      = "sent"
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
	go serveConnections(listener)
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
