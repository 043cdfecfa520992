package attack

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/test/internal/unetd"
)

// startPeers has this process answer on host B, through unetd there: datagrams at a
// port by a unet.Host, and messages to peerTag by an endpoint.
func startPeers(t testing.TB, d *unetd.Daemon, port uint16) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tripTimeout)
	defer cancel()
	h, err := unet.Open(ctx, unet.Config{Socket: d.Socket, Wait: stack.WaitBlock})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := h.ListenUDP(ctx, netip.AddrPortFrom(h.Addr(), port))
	if err != nil {
		t.Fatal(err)
	}
	grant, lease, err := control.Open(ctx, d.Socket, tagged(endpoint.MessageTag(peerTag)))
	if err != nil {
		t.Fatal(err)
	}
	ep, err := datapath.Attach(grant, datapath.Config{Wait: datapath.WaitBlock, Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, err = conn.WriteToUDPAddrPort(buf[:n], from)
			}
			if err != nil {
				t.Errorf("peer on host B: %v", err)
				return
			}
		}
	})
	answering.Go(func() {
		if err := answerMessages(ep); !errors.Is(err, endpoint.ErrLeaseClosed) {
			t.Errorf("peer on host B: %v", err)
		}
	})
	t.Cleanup(func() {
		err := errors.Join(h.Close(), lease.Close())
		answering.Wait()
		if err := errors.Join(err, ep.Close()); err != nil {
			t.Error(err)
		}
	})
}
func answerMessages(ep *datapath.Endpoint) error {
	msgs := make([]datapath.Message, 32)
	for {
		if err := ep.Wait(time.Time{}); err != nil && !errors.Is(err, datapath.ErrWoken) {
			return err
		}
		n := ep.Recv(msgs)
		for i := range msgs[:n] {
			ch := ep.ReplyChannel(&msgs[i])
			err := ep.Write(&ch, msgs[i].Payload())
			ep.Free(&msgs[i])
			if err != nil {
				return err
			}
		}
		if err := ep.Flush(); err != nil {
			return err
		}
	}
}
