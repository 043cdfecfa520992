package stack_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// peers is a route service: the MAC address of 10.0.0.N is 2:0:0:0:0:N.
type peers struct{}

func (peers) Resolve(_ context.Context, _, dst netip.Addr) (stack.Route, error) {
	return stack.Route{LinkAddr: macOf(dst)}, nil
}

func macOf(a netip.Addr) wire.LinkAddr { return wire.LinkAddr{2, 0, 0, 0, 0, a.As4()[3]} }

// Two stacks on a link in memory: no kernel, no privilege.
func Example() {
	linkA, linkB := memlink.Pair(memlink.Config{})
	open := func(link stack.Link, addr string) *stack.Stack {
		p := netip.MustParsePrefix(addr)
		s, err := stack.New(stack.Config{Link: link, LinkAddr: macOf(p.Addr()), Addrs: []netip.Prefix{p}, Resolver: peers{}, MTU: 1500})
		if err != nil {
			panic(err)
		}
		return s
	}
	a, b := open(linkA, "10.0.0.1/24"), open(linkB, "10.0.0.2/24")
	defer a.Close()
	defer b.Close()

	server, err := b.ListenUDP(netip.MustParseAddrPort("10.0.0.2:7"), stack.UDPOptions{})
	if err != nil {
		panic(err)
	}
	client, err := a.DialUDP(netip.MustParseAddrPort("10.0.0.1:5000"), netip.MustParseAddrPort("10.0.0.2:7"), stack.UDPOptions{})
	if err != nil {
		panic(err)
	}
	client.Write([]byte("hello"))
	buf := make([]byte, 1500)
	n, from, err := server.ReadFrom(buf)
	fmt.Printf("%q from %v, %v\n", buf[:n], from, err)
	// Output: "hello" from 10.0.0.1:5000, <nil>
}
