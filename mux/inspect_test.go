//go:build linux

package mux_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// Inspect says what Open would do, and follows changes of the interface.
func TestInspect(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{Queues: 4, MTU: 9000})
	inspect := func() (in mux.Inspection) {
		t.Helper()
		testutil.Must(t, pair.A.Do(func() (err error) { in, err = mux.Inspect(pair.A.Interface); return err }))
		return in
	}
	in := inspect()
	if in.Kind != "veth" || in.Driver != "veth" || !in.Up || in.MTU != 9000 || in.Queues != 4 || in.Active != 4 || in.Mode != mux.ModeTCX ||
		!strings.Contains(in.Because, "virtual link") || !strings.Contains(in.ZeroCopy, "tcx mode has no zero copy") || in.Refused != nil || in.Fixed != "" {
		t.Errorf("%+v", in)
	}
	testutil.Must(t, pair.A.Do(func() error { return netlab.SetOffload(pair.A.Interface, "rxvlan", true) }))
	if in := inspect(); !strings.Contains(in.Hidden, "rx-vlan-hw-parse") || in.Fixed != "" {
		t.Errorf("with receive VLAN offload: %+v", in)
	}
	bpffs := netlab.BPFFS(t)
	m, err := mux.Open(mux.Config{Interface: pair.A.Interface, NetNS: pair.A.NS, Pin: bpffs})
	testutil.Must(t, err)
	if in := inspect(); !errors.Is(in.Refused, mux.ErrInUse) || in.Mode.String() != m.Identity().Mode {
		t.Errorf("with a mux: %+v", in)
	}
	pins := func(h *netlab.Host) (p mux.PinState) {
		t.Helper()
		testutil.Must(t, h.Do(func() error {
			list, err := mux.Pins(bpffs)
			if err == nil && len(list) != 1 {
				t.Errorf("%+v", list)
			}
			p = list[0]
			return err
		}))
		return p
	}
	if p := pins(pair.A); !p.Here || p.Interface != pair.A.Interface || !p.Served || p.Gone {
		t.Errorf("%+v", p)
	}
	if p := pins(pair.B); p.Here || p.Interface != "" || !p.Served || p.Gone {
		t.Errorf("from another namespace: %+v", p)
	}
	testutil.Must(t, m.Abandon())
	if p := pins(pair.A); p.Served || p.Gone {
		t.Errorf("abandoned: %+v", p)
	}
	testutil.Must(t, pair.A.Do(func() error {
		l, err := netlink.LinkByName(pair.A.Interface)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}))
	if p := pins(pair.A); !p.Gone || p.Interface != "" {
		t.Errorf("without the interface: %+v", p)
	}
	err = pair.A.Do(func() error { _, err := mux.Inspect(pair.A.Interface); return err })
	if !errors.Is(err, mux.ErrNoInterface) {
		t.Errorf("%v", err)
	}
}
