//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
	"golang.org/x/net/dns/dnsmessage"
)

// TestResolver asks a server on unet with package net's resolver, over a kernel socket and over one of unet.
func TestResolver(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	z, err := parseZone([]string{"www.example.test=192.0.2.1", "WWW.example.test.=192.0.2.2", "www.example.test=2001:db8::1", "six.example.test=2001:db8::2"})
	if err != nil {
		t.Fatal(err)
	}
	server, client := lab.Host(t, pair.A), lab.Host(t, pair.B)
	conn, err := server.ListenPacket(t.Context(), "udp", "10.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- z.serve(conn) }()
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"kernel": func(_ context.Context, network, _ string) (net.Conn, error) {
			return pair.B.Dial(network, "10.0.0.1:53")
		},
		"unet": func(ctx context.Context, network, _ string) (net.Conn, error) {
			return client.DialContext(ctx, network, "10.0.0.1:53")
		},
	} {
		resolver := net.Resolver{PreferGo: true, Dial: dial}
		for _, c := range []struct {
			network, name string
			want          []string
		}{
			{"ip", "www.example.test.", []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}},
			{"ip4", "www.EXAMPLE.test.", []string{"192.0.2.1", "192.0.2.2"}},
			{"ip6", "six.example.test.", []string{"2001:db8::2"}},
		} {
			addrs, err := resolver.LookupNetIP(t.Context(), c.network, c.name)
			var got []string
			for _, a := range addrs {
				got = append(got, a.String())
			}
			slices.Sort(got)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %s of %s: %v, %v, want %v", name, c.network, c.name, got, err, c.want)
			}
		}
		var e *net.DNSError
		if _, err := resolver.LookupNetIP(t.Context(), "ip", "nothing.example.test."); !errors.As(err, &e) || !e.IsNotFound {
			t.Errorf("%s: a name that does not exist: %v", name, err)
		}
	}
	conn.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("server: %v", err)
	}
}

// TestTruncated: a reply of more than 512 bytes has no answers and the bit TC (RFC 1035, section 4.2.1).
func TestTruncated(t *testing.T) {
	name := dnsmessage.MustNewName("many.test.")
	z := zone{name.String(): make([]netip.Addr, 40)}
	for i := range z[name.String()] {
		z[name.String()][i] = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
	}
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	packed, err := query.Pack()
	if err != nil {
		t.Fatal(err)
	}
	reply, err := z.reply(packed)
	if err != nil {
		t.Fatal(err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(reply); err != nil || !m.Truncated || len(m.Answers) != 0 || m.ID != 7 {
		t.Errorf("reply of %d bytes: %v, %v", len(reply), m.GoString(), err)
	}
	if _, err := z.reply(reply); err == nil {
		t.Error("a response was answered")
	}
}

// FuzzReply: whatever arrives, a reply is a response of at most 512 bytes with the query's ID.
func FuzzReply(f *testing.F) {
	z, err := parseZone([]string{"a.test=192.0.2.1"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, query []byte) {
		reply, err := z.reply(query)
		if err == nil && (len(reply) > maxReply || !bytes.Equal(reply[:2], query[:2]) || reply[2]&0x80 == 0) {
			t.Errorf("reply %x", reply)
		}
	})
}
