package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/stack"
)

// unetUDP is a connected UDP socket of package unet, used as one of package
// net would be.
type unetUDP struct {
	host *unet.Host
	conn *unet.UDPConn
	buf  []byte
	last []byte
	out  []unet.Message
	in   []unet.Message
}

var stackWait = map[string]stack.WaitMode{
	"spin":     stack.WaitSpin,
	"adaptive": stack.WaitAdaptive,
	"block":    stack.WaitBlock,
}

// openHost is a host of package unet on an endpoint of this host's unetd. It shares
// the interface's address, unless the job gives it one of its own.
func openHost(ctx context.Context, j workload.Job) (*unet.Host, error) {
	wait, ok := stackWait[j.Wait]
	if !ok {
		return nil, fmt.Errorf("BUG: wait mode %q", j.Wait)
	}
	g, lease, err := openGrant(ctx, j)
	if err != nil {
		return nil, err
	}
	host, err := unet.New(ctx, g, lease, unet.Config{Wait: wait, Addr: j.Local.Own})
	if err != nil {
		return nil, errors.Join(err, g.Close(), lease.Close())
	}
	return host, nil
}

func openUDP(ctx context.Context, j workload.Job) (workload.Conn, error) {
	host, err := openHost(ctx, j)
	if err != nil {
		return nil, err
	}
	conn, err := host.DialUDP(ctx, j.Local.UDP, j.Remote.UDP)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	u := &unetUDP{
		host: host, conn: conn,
		buf: make([]byte, maxMessage),
		out: make([]unet.Message, j.Batch),
		in:  make([]unet.Message, workload.RecvBatchSize),
	}
	for i := range u.in {
		u.in[i].Buf = make([]byte, maxMessage)
	}
	return u, nil
}

func (u *unetUDP) Send(b []byte) error {
	for {
		_, err := u.conn.Write(b)
		if !refused(err) {
			return err
		}
	}
}

func (u *unetUDP) SendBatch(bs [][]byte) error {
	for i, b := range bs {
		u.out[i].Buf = b
	}
	for from := 0; from < len(bs); {
		n, err := u.conn.WriteBatch(u.out[from:len(bs)])
		if err != nil && !refused(err) {
			return err
		}
		from += n
	}
	return nil
}

func (u *unetUDP) Recv() ([]byte, error) {
	for {
		n, err := u.conn.Read(u.buf)
		if err == nil {
			u.last = u.buf[:n]
			return u.last, nil
		}
		if !refused(err) {
			return nil, err
		}
	}
}

func (u *unetUDP) RecvBatch(bs [][]byte) (int, error) {
	for {
		n, err := u.conn.ReadBatch(u.in[:min(len(bs), len(u.in))])
		if err == nil {
			for i := range n {
				bs[i] = u.in[i].Buf[:u.in[i].N]
			}
			return n, nil
		}
		if !refused(err) {
			return 0, err
		}
	}
}

func (u *unetUDP) Reply() error                  { return u.Send(u.last) }
func (u *unetUDP) SetDeadline(t time.Time) error { return u.conn.SetReadDeadline(t) }
func (u *unetUDP) Close() error                  { return errors.Join(u.conn.Close(), u.host.Close()) }
