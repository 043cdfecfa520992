//go:build linux

package mux

import (
	"os"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux/internal/nic"
)

// shape completes the geometry that a request leaves open, and chooses how the socket is bound:
// frames of 4096 bytes if those get zero copy and the default does not.
func (m *Mux) shape(req endpoint.Request, terms Terms) (endpoint.Geometry, nic.Binding, error) {
	geometry := req.Geometry.WithDefaults()
	if err := terms.boundTx(&geometry, req.Geometry.TxSize); err != nil {
		return geometry, nic.PortBinding, err
	}
	if err := geometry.Validate(); err != nil || req.Attach != endpoint.AttachQueue {
		return geometry, nic.PortBinding, err
	}
	choose, err := m.bindingChooser()
	if err != nil {
		return geometry, nic.Binding{}, err
	}
	b := choose(geometry.FrameSize)
	if large := choose(nic.LargeFrame); req.Geometry.FrameSize == 0 && !b.ZeroCopy && large.ZeroCopy {
		b, geometry.FrameSize = large, nic.LargeFrame
	}
	return geometry, b, geometry.Validate()
}

// bindingChooser is nic.ChooseBinding on the uplink as it is now.
func (m *Mux) bindingChooser() (func(frameSize uint32) nic.Binding, error) {
	var can nic.XDPSupport
	err := route.Within(m.ns, func() error { can = nic.XDPFeatures(m.up.Index); return nil })
	return func(frameSize uint32) nic.Binding {
		return nic.ChooseBinding(m.progs.Mode, m.up.Driver, can, m.uplinkMTU.Load(), frameSize)
	}, err
}

// presentedBinding is the binding of a socket on a queue that another process has bound.
func (m *Mux) presentedBinding(sock *os.File) (nic.Binding, error) {
	zeroCopy, err := xsk.ZeroCopy(sock)
	if err != nil || zeroCopy {
		return nic.Binding{ZeroCopy: zeroCopy}, err
	}
	choose, err := m.bindingChooser()
	b := choose(endpoint.DefaultFrameSize)
	if b.ZeroCopy {
		b = nic.Binding{SG: true, Why: "an earlier unetd bound it so"}
	}
	return b, err
}

// bindQueue binds a socket as b says. If the kernel refuses zero copy the socket is bound to copy,
// and the returned binding has the kernel's error. The calling thread is in the uplink's
// namespace.
func (m *Mux) bindQueue(sock *os.File, params xsk.Params, b nic.Binding, trusted bool) (nic.Binding, error) {
	if b.ZeroCopy {
		params.ZeroCopy, params.SG = true, b.SG
		err := xsk.Bind(sock, params)
		if err == nil {
			return b, nil
		}
		b.Why = m.up.ZeroCopyRefused(err)
		b.ZeroCopy = false
	}
	b.SG = trusted
	params.ZeroCopy, params.SG = false, b.SG
	return b, xsk.Bind(sock, params)
}

// warnOfLongPackets logs which endpoints cannot receive the longest packets of a new MTU.
func (m *Mux) warnOfLongPackets(mtu uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		if l.frameSize == 0 { // taken over: not known
			continue
		}
		room := nic.ZeroCopyRoom(m.up.Driver, l.frameSize)
		if l.bound.ZeroCopy && !l.bound.SG && nic.LongestPacket(mtu) > room {
			m.log.Warn("the MTU exceeds what an endpoint with zero copy receives: longer frames of its queue are dropped until it is opened again",
				"endpoint", l.id, "queue", l.queue, "mtu", mtu, "frame_bytes", room)
		}
	}
}
