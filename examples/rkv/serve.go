package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/examples/rkv/kv"
	"github.com/unet-go/unet/verbs"
)

// serve keeps the table, and answers lookups over UDP for bench, until ctx ends.
func serve(ctx context.Context, host *unet.Host, rdma *verbs.Context, o options) error {
	if o.addr.Addr() != host.Addr() {
		return fmt.Errorf("--listen: the address of this host is %v", host.Addr())
	}
	o.table.Port = o.addr.Port()
	server, err := kv.NewServer(rdma, o.table)
	if err != nil {
		return err
	}
	conn, err := host.ListenUDP(ctx, server.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	go answer(conn, server)
	fmt.Println("serving on", server.Addr())
	if err := server.Serve(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// A request over UDP is a number of 4 bytes and a key. The reply is the number, 1 or 0 for a key
// that is there or not, and the value.
const numberLen = 4

func answer(conn *unet.UDPConn, server *kv.Server) {
	buf, reply := make([]byte, 65536), make([]byte, 0, 65536)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if n < numberLen {
			continue
		}
		reply = append(binary.BigEndian.AppendUint32(reply[:0], binary.BigEndian.Uint32(buf)), 1)
		if reply, err = server.Get(string(buf[numberLen:n]), reply); err != nil {
			reply[numberLen] = 0
		}
		if _, err := conn.WriteToUDPAddrPort(reply, from); err != nil {
			fmt.Println("not answered:", err)
		}
	}
}
