package mux_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// Somebody deletes the port of an endpoint, or moves it away: its lease ends and says
// why, the log names it, and the tag is free.
func TestPortIsDeleted(t *testing.T) {
	l := newPinLab(t)
	var log logBuffer
	l.openConfig(mux.Config{Pin: l.pin, Log: slog.New(slog.NewTextHandler(&log, nil))})
	other := l.open(endpoint.MessageTag(8))
	for _, remove := range []func(netlink.Link) error{
		netlink.LinkDel,
		func(port netlink.Link) error { return netlink.LinkSetNsFd(port, int(l.B.NS)) },
	} {
		a := l.open(udpTag("10.0.0.1:7000"))
		port := fmt.Sprintf("unet%d", a.grant.ID)
		onDevice(t, l.A, port, remove)
		eventually(t, "its lease has ended", func() bool { return a.lease.Err() != nil })
		if err := a.lease.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, mux.ErrPortDeleted) || !strings.Contains(err.Error(), port) {
			t.Errorf("ended by %v", err)
		}
		eventually(t, "the log says so", func() bool {
			return strings.Contains(log.String(), fmt.Sprintf("port=%s endpoint=%d uid=0", port, a.grant.ID))
		})
		a.close()
	}
	// Who closes the socket and keeps the lease has done it himself.
	warned := strings.Count(log.String(), "level=WARN")
	b := l.open(udpTag("10.0.0.1:7000"))
	links := len(look(t, l.A).links)
	lease := b.lease
	must(t, l.mux.LeaveFillRings())
	b.leave()
	eventually(t, "the port is gone", func() bool { return len(look(t, l.A).links) < links })
	// Events come in order, so after one that the mux answers this one was seen.
	onDevice(t, l.A, fmt.Sprintf("unet%d", other.grant.ID), netlink.LinkDel)
	eventually(t, "the other lease has ended", func() bool { return other.lease.Err() != nil })
	if err := lease.Err(); err != nil {
		t.Errorf("ended by %v", err)
	}
	must(t, lease.Close())
	eventually(t, "the log says so", func() bool { return strings.Count(log.String(), "level=WARN") > warned })
	if n := strings.Count(log.String(), "level=WARN"); n != warned+1 {
		t.Errorf("%d more warnings:\n%s", n-warned, log.String())
	}
}
