package mux_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// A cutter that a process has left behind is replaced; a device of that name that is
// none is not touched.
func TestCutterIsThereAlready(t *testing.T) {
	for _, ours := range []bool{true, false} {
		t.Run(fmt.Sprint("ours ", ours), func(t *testing.T) {
			l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
			must(t, l.A.Do(func() error {
				up, err := netlink.LinkByName(l.A.Interface)
				must(t, err)
				a := netlink.NewLinkAttrs()
				a.Name = fmt.Sprintf("unetcut%d", up.Attrs().Index)
				if ours {
					return netlink.LinkAdd(&netlink.Ifb{LinkAttrs: a})
				}
				return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: a})
			}))
			before := look(t, l.A)
			if ours {
				l.openMux(mux.ModeGeneric)
				if now := look(t, l.A); !slices.Equal(now.cutters, before.cutters) {
					t.Errorf("cutters %v, were %v", now.cutters, before.cutters)
				}
				must(t, l.mux.Close())
				if now := look(t, l.A); len(now.cutters) != 0 {
					t.Errorf("left behind: %v", now.cutters)
				}
				return
			}
			must(t, l.A.Do(func() error {
				m, err := mux.Open(mux.Config{Interface: l.A.Interface, Mode: mux.ModeGeneric})
				if err == nil {
					return errors.Join(errors.New("opened beside somebody else's device"), m.Close())
				}
				if !strings.Contains(err.Error(), "device unetcut") || !errors.Is(err, unix.EEXIST) {
					t.Errorf("opened: %v", err)
				}
				return nil
			}))
			if now := look(t, l.A); !slices.Equal(now.links, before.links) || len(now.xdp) != 0 {
				t.Errorf("devices %v with programs on %v, were %v", now.links, now.xdp, before.links)
			}
		})
	}
}
