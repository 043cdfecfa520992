//go:build linux

package uplink

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// logHook is a log handler that calls a function with each message.
type logHook func(message string)

func (logHook) Enabled(context.Context, slog.Level) bool        { return true }
func (h logHook) Handle(_ context.Context, r slog.Record) error { h(r.Message); return nil }
func (h logHook) WithAttrs([]slog.Attr) slog.Handler            { return h }
func (h logHook) WithGroup(string) slog.Handler                 { return h }

// An uplink is closed while it opens its interface again. It closes the mux that it has opened, and does not log
// that the interface is served.
func TestCloseWhileOpening(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	var mu sync.Mutex
	var messages []string
	var opened int
	var u *Uplink
	log := slog.New(logHook(func(message string) {
		mu.Lock()
		defer mu.Unlock()
		messages = append(messages, message)
		if message == "mux attached" {
			if opened++; opened == 2 { // in mux.Open, called by reopen
				u.cancel()
			}
		}
	}))
	s, err := policy.OpenSource("", filepath.Join(t.TempDir(), "none"), policy.SystemNames(), log)
	if err != nil {
		t.Fatal(err)
	}
	a := &policy.Authority{Source: s, Interface: pair.A.Interface, Log: log}
	err = pair.A.Do(func() (err error) {
		u, err = openUplink(mux.Config{Interface: pair.A.Interface, Policy: a, Log: log}, a)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = pair.A.Do(func() error {
		link, err := netlink.LinkByName(pair.A.Interface)
		if err != nil {
			return err
		}
		if err := netlink.LinkDel(link); err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = pair.A.Interface
		next := netlink.NewVeth(attrs)
		next.PeerName = "peer"
		if err := netlink.LinkAdd(next); err != nil {
			return err
		}
		return netlink.LinkSetUp(next)
	})
	if err != nil {
		t.Fatal(err)
	}
	<-u.kept
	if u.mux == nil {
		t.Error("the mux that was opened is not kept, so it would not be closed")
	}
	if err := u.end((*mux.Mux).Close); err != nil {
		t.Error(err)
	}
	if opened != 2 {
		t.Errorf("opened %d times", opened)
	}
	for _, m := range messages {
		if m == "the interface is served again" {
			t.Errorf("%q", messages)
		}
	}
	links := 0
	err = pair.A.Do(func() error {
		list, err := netlink.LinkList()
		links = len(list)
		return err
	})
	if err != nil || links != 3 {
		t.Errorf("%d interfaces are left of lo, %s and its peer; %v", links, pair.A.Interface, err)
	}
}
