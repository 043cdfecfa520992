package attack

import (
	"errors"
	"net/netip"
	"os"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

// greed is a tag that an attacker wants, and why it is not to have it.
type greed struct {
	Tag  endpoint.Tag
	Want error
}

func policyCases() []attackCase {
	return []attackCase{
		{"tags of others", "claims of the neighbour's ports, blocks around them, addresses and message tags, of the kernel's ports and addresses, of ports below 1024", func(s *scene) {
			t := s.target(endpoint.Request{})
			udp, tcp := endpoint.UDPTag, endpoint.TCPTag
			at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
			neighbour := at(hostA, neighbourPort)
			all := []greed{
				{udp(neighbour), endpoint.ErrTagHeld},
				{udp(neighbour).AsBlock(), endpoint.ErrTagHeld},
				{tcp(neighbour), endpoint.ErrTagHeld},
				{tcp(neighbour).AsBlock(), endpoint.ErrTagHeld},
				{udp(at(hostA6, neighbourPort)), endpoint.ErrTagHeld},
				{udp(at(hostA, neighbourBlock)), endpoint.ErrTagHeld},
				{udp(at(hostA, neighbourBlock+63)), endpoint.ErrTagHeld},
				{udp(at(hostA, neighbourBlock)).AsBlock(), endpoint.ErrTagHeld},
				{udp(at(hostA, attackerPort)), endpoint.ErrTagHeld}, // of the same user's other process
				{udp(at(hostA, kernelPort)), endpoint.ErrTagHeld},
				{tcp(at(hostA, kernelPort)), endpoint.ErrTagHeld},
				{tcp(at(hostA, kernelPort)).AsBlock(), endpoint.ErrTagHeld},
				{udp(at(hostA, 53)), endpoint.ErrTagDenied},
				{tcp(at(hostA, 22)), endpoint.ErrTagDenied},
				{udp(at(hostA, 960)).AsBlock(), endpoint.ErrTagDenied},
				{udp(at(neighbourAddr, 7000)), endpoint.ErrTagDenied},
				{udp(at(hostB, 7000)), endpoint.ErrTagDenied},
				{udp(at(netip.MustParseAddr("224.0.0.1"), 7000)), endpoint.ErrTagDenied},
				{udp(at(netip.MustParseAddr("127.0.0.1"), 7000)), endpoint.ErrTagDenied},
				{endpoint.AddrTag(hostA), endpoint.ErrTagDenied},
				{endpoint.AddrTag(hostA6), endpoint.ErrTagDenied},
				{endpoint.AddrTag(neighbourAddr), endpoint.ErrTagDenied},
				{endpoint.AddrTag(neighbourAddr6), endpoint.ErrTagDenied},
				{endpoint.AddrTag(hostB), endpoint.ErrTagDenied},
				{endpoint.AddrTag(netip.MustParseAddr("255.255.255.255")), endpoint.ErrTagDenied},
				{endpoint.AddrTag(attackerAddr), endpoint.ErrTagHeld},
				{endpoint.MessageTag(neighbourTag), endpoint.ErrTagDenied},
				{endpoint.MessageTag(peerTag), endpoint.ErrTagDenied},
				{endpoint.MessageTag(attackerTag), endpoint.ErrTagHeld},
			}
			outcomes := map[string]int{}
			for _, g := range all {
				_, err := claim.try(t.actor, claimArg{t.Gun, g.Tag})
				if !errors.Is(err, g.Want) {
					s.Errorf("claim of %v: %v, want %v", g.Tag, err, g.Want)
				}
				if err != nil {
					outcomes[g.Want.Error()]++
				}
			}
			s.row.note("%d claims: %s", len(all), countsText(outcomes))
			t.answers(s)
		}},
		{"more than the policy gives", "a queue of the uplink, a segment of 1 GiB, more memory in all, list and counters, an endpoint for a user whom no rule names", func(s *scene) {
			a := cast(s, s.pair.A, attackerID)
			open := func(what string, req endpoint.Request, want ...error) {
				_, err := openGun.try(a, openArg{s.unetd.Socket, req})
				for _, w := range want {
					if errors.Is(err, w) {
						s.row.note("%s: %v", what, err)
						return
					}
				}
				s.Errorf("%s: %v, want %v", what, err, want)
			}
			open("a queue", endpoint.Request{Attach: endpoint.AttachQueue}, os.ErrPermission)
			open("1 GiB", endpoint.Request{Geometry: endpoint.Geometry{FrameSize: 4096, FrameCount: 1 << 18}}, control.ErrBusy, os.ErrPermission)
			open("2^32 bytes", endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 1 << 31}}, endpoint.ErrGeometry)
			half := endpoint.Request{Geometry: endpoint.Geometry{FrameCount: attackerMemory / 2 / 2048}}
			if _, err := openGun.try(a, openArg{s.unetd.Socket, half}); err != nil {
				s.Errorf("half of the memory: %v", err)
			}
			open("the other half and what others have", half, control.ErrBusy)
			if _, err := curious.try(a, s.unetd.Socket); !errors.Is(err, os.ErrPermission) {
				s.Errorf("list and counters: %v, want permission", err)
			}
			stranger := cast(s, s.pair.A, strangerID)
			if _, err := openGun.try(stranger, openArg{s.unetd.Socket, endpoint.Request{}}); !errors.Is(err, os.ErrPermission) {
				s.Errorf("an endpoint for a stranger: %v, want permission", err)
			}
		}},
	}
}

// claimArg is a tag to claim.
type claimArg struct {
	Gun int
	Tag endpoint.Tag
}

var claim = teach("claim", func(a *agent, arg claimArg) (endpoint.Tag, error) {
	ctx, cancel := timeout()
	defer cancel()
	return a.guns[arg.Gun].lease.Claim(ctx, arg.Tag)
})

// curious asks unetd for what only operators may know.
var curious = teach("curious", func(a *agent, socket string) (nothing, error) {
	ctx, cancel := timeout()
	defer cancel()
	if _, err := control.List(ctx, socket); err == nil {
		return nothing{}, errors.New("the list was given")
	}
	_, err := control.Counters(ctx, socket)
	return nothing{}, err
})
