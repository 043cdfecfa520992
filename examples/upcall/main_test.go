//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
)

func openAt(t *testing.T, at *netlab.Host, tag uint32) (*datapath.Endpoint, endpoint.Lease) {
	t.Helper()
	grant, lease, err := lab.Mux(t, at).OpenEndpoint(t.Context(), endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(tag)}})
	if err != nil {
		t.Fatal(err)
	}
	ep, err := datapath.Attach(grant, datapath.Config{Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close(); lease.Close() })
	return ep, lease
}

func startServer(t *testing.T, at *netlab.Host) {
	t.Helper()
	server, _ := openAt(t, at, 7)
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, server) }()
	t.Cleanup(func() {
		end()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Errorf("server: %v", err)
		}
	})
}

func TestSum(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	startServer(t, pair.A)
	client, lease := openAt(t, pair.B, 0)
	for n := range uint64(1000) {
		sum, err := ask(t.Context(), client, lease, pair.A.Addr.Addr(), 7, []uint64{n, n, 1})
		if err != nil || sum != 2*n+1 {
			t.Fatalf("%d + %d + 1 = %d, %v", n, n, sum, err)
		}
	}
	if sum, err := ask(t.Context(), client, lease, pair.A.Addr.Addr(), 7, nil); err != nil || sum != 0 {
		t.Errorf("the sum of nothing: %d, %v", sum, err)
	}
}

// TestPacketSocket has as its peer a packet socket of the kernel, and messages written by hand from
// docs/message-format.md.
func TestPacketSocket(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	startServer(t, pair.A)
	const etherType = 0x88B5
	var fd int
	err := pair.B.Do(func() (err error) {
		if fd, err = syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, 0xB588); err != nil { // 0x88B5 in the order of the network
			return err
		}
		in, err := net.InterfaceByName(pair.B.Interface)
		if err != nil {
			return err
		}
		return syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: 0xB588, Ifindex: in.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	timeout := syscall.NsecToTimeval(int64(10 * time.Second))
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	send := func(numbers ...uint64) {
		t.Helper()
		frame := append(append([]byte{}, pair.A.LinkAddr[:]...), pair.B.LinkAddr[:]...)
		frame = binary.BigEndian.AppendUint16(frame, etherType)
		frame = append(frame, 1, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(8*len(numbers)))
		frame = binary.BigEndian.AppendUint32(frame, 7)
		frame = binary.BigEndian.AppendUint32(frame, 9)
		for _, n := range numbers {
			frame = binary.BigEndian.AppendUint64(frame, n)
		}
		if _, err := syscall.Write(fd, frame); err != nil {
			t.Fatal(err)
		}
	}
	send()               // without a number of the query: not answered
	send(0xABC, 2, 3, 4) // answered
	buf := make([]byte, 2048)
	for {
		n, err := syscall.Read(fd, buf)
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		reply := buf[:n]
		if n < 42 || [6]byte(reply[:6]) != [6]byte(pair.B.LinkAddr) {
			continue // what this socket has sent
		}
		length, to, from := binary.BigEndian.Uint16(reply[16:]), binary.BigEndian.Uint32(reply[18:]), binary.BigEndian.Uint32(reply[22:])
		id, sum := binary.BigEndian.Uint64(reply[26:]), binary.BigEndian.Uint64(reply[34:])
		if length != 16 || to != 9 || from != 7 || id != 0xABC || sum != 9 {
			t.Errorf("answer of %d bytes from tag %d to tag %d: query %x, sum %d", length, from, to, id, sum)
		}
		return
	}
}
