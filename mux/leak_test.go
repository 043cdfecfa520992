package mux_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// find looks whether an object is there, and whether it is of a unet_note_vlan, which
// all muxes of a machine share: that may stay while somebody else's mux is open.
func find(o netlab.BPFObject) (exists, shared bool) {
	var err error
	switch o.Kind {
	case "map":
		var m *ebpf.Map
		if m, err = ebpf.NewMapFromID(ebpf.MapID(o.ID)); err == nil {
			defer m.Close()
			info, infoErr := m.Info()
			shared = infoErr == nil && info.Name == bpf.MuxMapVlanNote
		}
	case "prog":
		shared, err = isNote(ebpf.ProgramID(o.ID))
	case "link":
		var l link.Link
		if l, err = link.NewFromID(link.ID(o.ID)); err == nil {
			defer l.Close()
			if info, infoErr := l.Info(); infoErr == nil {
				shared, _ = isNote(info.Program) // an error: it is going, and is looked at again
			}
		}
	}
	return !errors.Is(err, os.ErrNotExist), shared
}

func isNote(id ebpf.ProgramID) (bool, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return false, err
	}
	defer p.Close()
	info, err := p.Info()
	return err == nil && info.Name == bpf.MuxProgUnetNoteVlan, nil
}

// bpfObjects are what a process holds by descriptors. (Other tests may run on this machine, so
// numbers of all there are say nothing.)
func bpfObjects(t *testing.T, pid int) map[netlab.BPFObject]bool {
	t.Helper()
	held, err := netlab.HeldBPF(pid)
	must(t, err)
	return held
}

// namespaces counts the network namespaces that a host knows, which are its peer's and those
// of ports.
func namespaces(t *testing.T, h *netlab.Host) int {
	t.Helper()
	n, err := h.KnownNamespaces()
	must(t, err)
	return n
}

// After many endpoints and some processes that died, nothing has piled up, whatever
// others do on the machine: a stranger has a mux of his own all the time.
func TestNothingPilesUp(t *testing.T) {
	netlab.RequireXDP(t)
	warm(t)
	stranger := newPinLab(t)
	stranger.serve(order{})
	l := newPinLab(t)
	empty, emptySpaces := look(t, l.A), namespaces(t, l.A)
	l.openConfig(mux.Config{Pin: l.pin})
	objects := bpfObjects(t, os.Getpid())
	if len(objects) < 10 {
		t.Fatalf("objects of a mux: %v", objects)
	}
	attached := look(t, l.A)
	tags := []endpoint.Tag{udpTag("10.0.0.1:0"), endpoint.TCPTag(netip.MustParseAddrPort("10.0.0.1:0")).AsBlock(), endpoint.MessageTag(0)}
	for i := range 100 {
		req := endpoint.Request{Geometry: small, Tags: tags}
		if i%10 == 0 {
			req.Attach = endpoint.AttachQueue
		}
		g, lease, err := l.mux.OpenEndpoint(t.Context(), req)
		must(t, err)
		if i%2 == 0 {
			must(t, errors.Join(g.Close(), lease.Close()))
		} else {
			must(t, errors.Join(lease.Close(), g.Close()))
		}
	}
	wantTraces(t, l.A, attached)
	must(t, l.mux.Abandon())
	for range 4 {
		c := l.serve(order{})
		for object := range bpfObjects(t, c.cmd.Process.Pid) {
			objects[object] = true
		}
		l.openIn(c, endpoint.Request{Tags: tags}).leave()
		c.do(order{Do: "endpoint", Request: endpoint.Request{Geometry: small, Tags: tags}}).Grant.Close()
		a := l.openIn(c, endpoint.Request{Tags: tags})
		c.kill()
		a.leave()
	}
	l.openConfig(mux.Config{Pin: l.pin})
	must(t, l.mux.Close())
	wantTraces(t, l.A, empty)
	eventually(t, "no namespace is left", func() bool { return namespaces(t, l.A) == emptySpaces })
	for object := range objects {
		eventually(t, fmt.Sprintf("%v is gone", object), func() bool {
			exists, shared := find(object)
			return !exists || shared && !bpfObjects(t, os.Getpid())[object]
		})
	}
}
