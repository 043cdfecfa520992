// Dns is a name server that has the addresses that its command line gives, and a client that asks
// one. Both use unet's UDP; the client is package net's Resolver.
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

	"github.com/unet-go/unet"
	"golang.org/x/net/dns/dnsmessage"
)

const usage = `usage:
  dns [flags] serve ADDR:PORT NAME=ADDR ...
  dns [flags] ask   ADDR:PORT NAME

example:
  dns serve 10.0.0.1:5353 www.example.test=192.0.2.1 www.example.test=192.0.2.2
  dns ask 10.0.0.1:5353 www.example.test

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "dns:", err)
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
	if len(args) < 3 {
		return errors.New("want serve or ask, an address, and names (see dns --help)")
	}
	network, err := unet.OpenNetwork(ctx, cfg, unet.Kernel())
	if err != nil {
		return err
	}
	defer network.Close()
	switch command, address := args[0], args[1]; command {
	case "serve":
		z, err := parseZone(args[2:])
		if err != nil {
			return err
		}
		conn, err := network.ListenPacket(ctx, "udp", address)
		if err != nil {
			return err
		}
		fmt.Println("listening on", conn.LocalAddr())
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		return z.serve(conn)
	case "ask":
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, transport, _ string) (net.Conn, error) {
			return network.DialContext(ctx, transport, address)
		}}
		addrs, err := resolver.LookupNetIP(ctx, "ip", strings.TrimSuffix(args[2], ".")+".")
		for _, a := range addrs {
			fmt.Println(a)
		}
		return err
	default:
		return fmt.Errorf("unknown command %q (see dns --help)", command)
	}
}

// zone is the addresses of each name. Names are in lower case and end in a dot.
type zone map[string][]netip.Addr

func parseZone(args []string) (zone, error) {
	z := zone{}
	for _, arg := range args {
		name, address, _ := strings.Cut(arg, "=")
		a, err := netip.ParseAddr(address)
		if err != nil {
			return nil, fmt.Errorf("%q is not NAME=ADDR: %w", arg, err)
		}
		name = strings.ToLower(strings.TrimSuffix(name, ".")) + "."
		if _, err := dnsmessage.NewName(name); err != nil {
			return nil, fmt.Errorf("%q: %w", arg, err)
		}
		z[name] = append(z[name], a)
	}
	return z, nil
}

// serve answers queries until conn is closed.
func (z zone) serve(conn net.PacketConn) error {
	buf := make([]byte, 512)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		if reply, err := z.reply(buf[:n]); err == nil { // what cannot be read gets no answer
			conn.WriteTo(reply, from) // the client asks again for a reply that is lost
		}
	}
}

// maxReply is the length of a reply without EDNS (RFC 1035, section 4.2.1), in bytes.
const maxReply = 512

// reply answers one query (RFC 1035, section 4.1): the addresses of a name, no record of another
// type, and NXDOMAIN for a name that the zone does not have.
func (z zone) reply(query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	if header.Response {
		return nil, errors.New("a response") // two servers would answer each other forever
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, OpCode: header.OpCode, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired},
		Questions: []dnsmessage.Question{q},
	}
	addrs, found := z[strings.ToLower(q.Name.String())]
	switch {
	case header.OpCode != 0:
		m.RCode = dnsmessage.RCodeNotImplemented
	case !found:
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range addrs {
		r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 60}}
		switch {
		case m.RCode != dnsmessage.RCodeSuccess || q.Class != dnsmessage.ClassINET:
			continue
		case q.Type == dnsmessage.TypeA && a.Is4():
			r.Body = &dnsmessage.AResource{A: a.As4()}
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			r.Body = &dnsmessage.AAAAResource{AAAA: a.As16()}
		default:
			continue
		}
		m.Answers = append(m.Answers, r)
	}
	reply, err := m.Pack()
	if err == nil && len(reply) > maxReply {
		m.Answers, m.Truncated = nil, true
		reply, err = m.Pack()
	}
	return reply, err
}
