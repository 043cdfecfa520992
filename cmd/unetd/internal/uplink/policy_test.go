package uplink

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

func udp(port uint16) endpoint.Tag {
	return endpoint.UDPTag(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port))
}

func TestPrivilegedPorts(t *testing.T) {
	first := uint16(firstUnprivileged(os.ReadFile(unprivilegedPorts)))
	if first < 2 {
		t.Skip("this system has no privileged ports")
	}
	root, user := control.Peer{PID: 1}, control.Peer{PID: 1, UID: 1001}
	message := endpoint.MessageTag(1)
	for _, c := range []struct {
		peer   control.Peer
		tags   []endpoint.Tag
		denied bool
	}{
		{root, []endpoint.Tag{udp(1), udp(first - 1)}, false},
		{user, []endpoint.Tag{udp(0), udp(first), udp(65535), message, endpoint.AddrTag(netip.MustParseAddr("10.0.0.9"))}, false},
		{user, []endpoint.Tag{message, udp(first), udp(first - 1)}, true},
		{user, []endpoint.Tag{udp(1)}, true},
	} {
		if err := allowTags(c.peer, c.tags...); errors.Is(err, endpoint.ErrTagDenied) != c.denied || !c.denied && err != nil {
			t.Errorf("%+v, %v: %v", c.peer, c.tags, err)
		}
	}
	if err := allowTags(user, udp(1)); !strings.Contains(err.Error(), "udp:10.0.0.1:1: ports below ") || !strings.HasSuffix(err.Error(), " need uid 0") {
		t.Errorf("%v", err)
	}
	// Both ways to claim ask, before the mux is (there is none).
	if _, _, err := (&Uplink{}).OpenEndpoint(context.Background(), user, endpoint.Request{Tags: []endpoint.Tag{udp(1)}}); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("OpenEndpoint: %v", err)
	}
	if _, err := (&lease{peer: user}).Claim(context.Background(), udp(1)); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("Claim: %v", err)
	}
}

func TestFirstUnprivileged(t *testing.T) {
	for text, want := range map[string]int{"1024\n": 1024, "0\n": 1, "80\n": 80, "": 1024, "many": 1024} {
		if got := firstUnprivileged([]byte(text), nil); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := firstUnprivileged(nil, unix.ENOENT); got != 1024 {
		t.Errorf("unreadable: %d", got)
	}
}

func TestQueueIsNotForEverybody(t *testing.T) {
	for _, uid := range []uint32{0, 1001} {
		_, _, err := (&Uplink{}).OpenEndpoint(context.Background(), control.Peer{UID: uid}, endpoint.Request{Attach: endpoint.AttachQueue})
		if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "--allow-queue") {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
}

// failing is a mux's lease whose table is full.
type failing struct{ endpoint.Lease }

func (failing) Claim(_ context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	return t, mux.ErrTableFull
}
func (failing) Unclaim(context.Context, endpoint.Tag) error { return nil }
func (failing) Resolve(context.Context, netip.Addr) (endpoint.Route, error) {
	return endpoint.Route{}, unix.EMFILE
}

// Also what comes after the open has codes.
func TestErrorsOfLease(t *testing.T) {
	l := &lease{failing{}, control.Peer{UID: 1001}}
	if _, err := l.Claim(context.Background(), udp(0)); !errors.Is(err, control.ErrBusy) {
		t.Errorf("Claim: %v", err)
	}
	if err := l.Unclaim(context.Background(), udp(0)); err != nil {
		t.Errorf("Unclaim: %v", err)
	}
	if _, err := l.Resolve(context.Background(), netip.Addr{}); !errors.Is(err, control.ErrBusy) {
		t.Errorf("Resolve: %v", err)
	}
}

func TestXDPModes(t *testing.T) {
	attr := func(kind uint16, value ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	for _, c := range []struct {
		nested []byte
		want   string
	}{
		{attr(2, 0), ""},
		{append(attr(2, 2), attr(iflaXDPSKBProg, 7, 0, 0, 0)...), "xdpgeneric"},
		{append(attr(iflaXDPDriverProg, 7, 0, 0, 0), attr(iflaXDPSKBProg, 8, 0, 0, 0)...), "xdpdrv xdpgeneric"},
		{attr(iflaXDPHWProg, 7, 0, 0, 0), "xdpoffload"},
		{attr(iflaXDPHWProg, 7, 0, 0, 0)[:6], ""},
		{make([]byte, 8), ""},
	} {
		if got := strings.Join(xdpModes(c.nested), " "); got != c.want {
			t.Errorf("%v: %q, want %q", c.nested, got, c.want)
		}
	}
}
