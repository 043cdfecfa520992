// Multicast finds services in the LAN without a directory: a query to a multicast group, which each
// service that has joined the group answers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/unet-go/unet"
)

const usage = `usage:
  multicast [flags] serve GROUP:PORT NAME   joins the group and answers queries with the name
  multicast [flags] find  GROUP:PORT        prints who answers

example:
  multicast serve 239.1.2.3:5000 printer
  multicast find 239.1.2.3:5000

With unetd, serve needs a policy that names the group (udp:239.1.2.3:5000).

flags:
`

const query = "who is there?"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "multicast:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var cfg unet.Config
	if err := cfg.FromEnv(); err != nil {
		return err
	}
	cfg.RegisterFlags(flag.CommandLine)
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage); flag.PrintDefaults() }
	flag.Parse()
	args := flag.Args()
	if len(args) < 2 {
		return errors.New("want serve or find, and a group (see multicast --help)")
	}
	group, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return err
	}
	network, err := unet.OpenNetwork(ctx, cfg, unet.Kernel())
	if err != nil {
		return err
	}
	defer network.Close()
	switch {
	case args[0] == "serve" && len(args) == 3:
		member, err := join(network.Host(), group)
		if err != nil {
			return err
		}
		fmt.Println("listening on", group)
		defer context.AfterFunc(ctx, func() { member.Close() })()
		return serve(ctx, network, member, args[2])
	case args[0] == "find" && len(args) == 2:
		found, err := find(ctx, network, group)
		for _, f := range found {
			fmt.Println(f)
		}
		return err
	}
	return errors.New("want serve GROUP:PORT NAME or find GROUP:PORT (see multicast --help)")
}

// join opens a socket that receives what is sent to the group; host is nil on the kernel's sockets.
func join(host *unet.Host, group netip.AddrPort) (net.PacketConn, error) {
	if host != nil {
		return host.ListenMulticastUDP("udp", nil, net.UDPAddrFromAddrPort(group))
	}
	return net.ListenMulticastUDP("udp", nil, net.UDPAddrFromAddrPort(group))
}

// serve answers queries until member is closed. The answers come from a port of the host's own.
func serve(ctx context.Context, network unet.Network, member net.PacketConn, name string) error {
	own, err := network.ListenPacket(ctx, "udp", ":0")
	if err != nil {
		return err
	}
	defer own.Close()
	for b := make([]byte, 64); ; {
		n, from, err := member.ReadFrom(b)
		if err != nil {
			return err
		}
		if string(b[:n]) == query {
			own.WriteTo([]byte(name), from) // whoever asks repeats a query whose answer is lost
		}
	}
}

// Datagrams can be lost, so find asks several times.
const (
	queries = 3
	pause   = 300 * time.Millisecond
)

// find returns the names of all who answer, and their addresses.
func find(ctx context.Context, network unet.Network, group netip.AddrPort) (found []string, err error) {
	conn, err := network.ListenPacket(ctx, "udp", ":0")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	known := map[netip.Addr]bool{}
	for range queries {
		if _, err := conn.WriteTo([]byte(query), net.UDPAddrFromAddrPort(group)); err != nil {
			return found, err
		}
		conn.SetReadDeadline(time.Now().Add(pause))
		for b := make([]byte, 64); ; {
			n, from, err := conn.ReadFrom(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return found, err
			}
			at := from.(*net.UDPAddr).AddrPort().Addr()
			if !known[at] {
				known[at] = true
				found = append(found, fmt.Sprintf("%s at %s", strings.ToValidUTF8(string(b[:n]), "?"), at))
			}
		}
	}
	return found, nil
}
