package datapath

import (
	"os"

	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/wire"
)

// Connections is the memory in which a process publishes its sockets (ADR 26). It goes
// to unetd with the request for an endpoint ([endpoint.Request].Connections). unetd shows the
// sockets to operators. When the lease has ended, it sends the peer of each TCP connection a
// RST, as the kernel closes the connections of a process that has died. Nothing else depends on
// it.
type Connections struct {
	file *os.File
	mem  []byte
}

// NewConnections makes a table of 262,143 empty records of 128 bytes. A page of it takes
// memory once one of its records has been written to.
func NewConnections() (*Connections, error) {
	file, mem, err := xsk.NewTable()
	if err != nil {
		return nil, err
	}
	*headerOf(mem) = wire.ConnectionsHeader{Magic: wire.ConnectionsMagic, Version: wire.ConnectionsVersion, RecordLen: wire.ConnectionLen}
	return &Connections{file, mem}, nil
}

// File is the descriptor that goes to unetd. It is closed by Close.
func (c *Connections) File() *os.File { return c.file }

// Records are the memory itself, without the header.
func (c *Connections) Records() []wire.Connection { return recordsOf(c.mem)[1:] }

// Endpoint is the header's record of the endpoint.
func (c *Connections) Endpoint() *wire.EndpointRecord { return &headerOf(c.mem).Endpoint }

// Publish writes the counters and the queues of an endpoint to its record, without those of memory paths.
func (c *Connections) Publish(e *Endpoint) {
	s, err := e.Stats()
	if err != nil { // the kernel's are 0 then
		return
	}
	r := c.Endpoint()
	r.Sent, r.Received, r.QueueFull, r.NoBuffers, r.Malformed = s.Sent, s.Received, s.QueueFull, s.NoBuffers, s.Malformed
	r.RxRingFull, r.FillRingEmpty, r.RxDropped = s.KernelRxRingFull, s.KernelFillRingEmpty, s.KernelRxDropped
	r.InvalidRx, r.InvalidTx = s.KernelInvalidRxDescs, s.KernelInvalidTxDescs
	r.RxQueue, r.TxQueue = e.sock.RX.Pending(), e.sock.TX.InFlight()
}

// Close unmaps the memory: the records must not be touched any more.
func (c *Connections) Close() error { return xsk.CloseTable(c.file, c.mem) }
