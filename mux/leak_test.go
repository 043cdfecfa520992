package mux_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// bpfObject is a map, program or link by the kernel's number.
type bpfObject struct {
	kind string
	id   uint32
}

func (o bpfObject) exists() bool {
	var err error
	switch o.kind {
	case "map":
		var m *ebpf.Map
		if m, err = ebpf.NewMapFromID(ebpf.MapID(o.id)); err == nil {
			m.Close()
		}
	case "prog":
		var p *ebpf.Program
		if p, err = ebpf.NewProgramFromID(ebpf.ProgramID(o.id)); err == nil {
			p.Close()
		}
	case "link":
		var l link.Link
		if l, err = link.NewFromID(link.ID(o.id)); err == nil {
			l.Close()
		}
	}
	return !errors.Is(err, os.ErrNotExist)
}

// bpfObjects are what a process holds by descriptors. (Other tests may run on this machine, so
// numbers of all there are say nothing.)
func bpfObjects(t *testing.T, pid int) map[bpfObject]bool {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	must(t, err)
	objects := map[bpfObject]bool{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue // a descriptor of the moment
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			key, value, _ := strings.Cut(lines.Text(), ":")
			if kind, ok := strings.CutSuffix(key, "_id"); ok && (kind == "map" || kind == "prog" || kind == "link") {
				id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
				must(t, err)
				objects[bpfObject{kind, uint32(id)}] = true
			}
		}
		f.Close()
	}
	return objects
}

// namespaces counts the network namespaces that a host knows, which are its peer's and those
// of ports.
func namespaces(t *testing.T, h *netlab.Host) int {
	t.Helper()
	return strings.Count(run(t, h, "ip", "netns", "list-id"), "nsid")
}

// After many endpoints and some processes that died, nothing has piled up.
func TestNothingPilesUp(t *testing.T) {
	netlab.RequireXDP(t)
	warm(t)
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
		eventually(t, fmt.Sprintf("%v is gone", object), func() bool { return !object.exists() })
	}
}
