package transport

import (
	"context"
	"errors"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
)

// messages is an endpoint and a channel to the other one, used as an
// application would: payloads are written (one copy), and read in place.
type messages struct {
	ep       *datapath.Endpoint
	ch       datapath.Channel
	lease    endpoint.Lease
	deadline time.Time
	lent     [workload.RecvBatchSize]datapath.Message
	held     int // of lent
}

func openMessages(ctx context.Context, j workload.Job) (workload.Conn, error) {
	wait, err := datapath.ParseWaitMode(j.Wait)
	if err != nil {
		return nil, err
	}
	g, lease, err := openGrant(ctx, j, endpoint.MessageTag(j.Local.Tag))
	if err != nil {
		return nil, err
	}
	ep, err := datapath.Attach(g, datapath.Config{Wait: wait})
	if err != nil {
		return nil, errors.Join(err, g.Close(), lease.Close())
	}
	ch, err := ep.Channel(ctx, lease, j.Remote.UDP.Addr(), j.Remote.Tag, j.Local.Tag)
	if err != nil {
		return nil, errors.Join(err, ep.Close(), lease.Close())
	}
	return &messages{ep: ep, ch: ch, lease: lease}, nil
}

// release ends the loan of what was received.
func (m *messages) release() {
	for i := range m.lent[:m.held] {
		m.ep.Free(&m.lent[i])
	}
	m.held = 0
}

// write stages one message, and waits while there is no room.
func (m *messages) write(b []byte) error {
	for {
		err := m.ep.Write(&m.ch, b)
		if !errors.Is(err, datapath.ErrQueueFull) && !errors.Is(err, datapath.ErrNoBuffers) {
			return err
		}
		if err := m.ep.Flush(); err != nil {
			return err
		}
	}
}

func (m *messages) Send(b []byte) error {
	if err := m.write(b); err != nil {
		return err
	}
	return m.ep.Flush()
}

func (m *messages) SendBatch(bs [][]byte) error {
	for _, b := range bs {
		if err := m.write(b); err != nil {
			return err
		}
	}
	return m.ep.Flush()
}

func (m *messages) Recv() ([]byte, error) {
	if err := m.receive(1); err != nil {
		return nil, err
	}
	return m.lent[0].Payload(), nil
}

func (m *messages) RecvBatch(bs [][]byte) (int, error) {
	if err := m.receive(min(len(bs), len(m.lent))); err != nil {
		return 0, err
	}
	for i := range m.held {
		bs[i] = m.lent[i].Payload()
	}
	return m.held, nil
}

// receive waits for at least one message and takes up to limit.
func (m *messages) receive(limit int) error {
	m.release()
	for m.held == 0 {
		if err := m.ep.Wait(m.deadline); err != nil {
			return err
		}
		m.held = m.ep.Recv(m.lent[:limit])
	}
	return nil
}

func (m *messages) Reply() error                  { return m.Send(m.lent[0].Payload()) }
func (m *messages) SetDeadline(t time.Time) error { m.deadline = t; return nil }

func (m *messages) Close() error {
	m.release()
	return errors.Join(m.ep.Close(), m.lease.Close())
}
