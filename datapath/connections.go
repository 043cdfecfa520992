package datapath

import (
	"os"

	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/wire"
)

// Connections is the memory in which a process publishes its TCP connections. It goes
// to unetd with the request for an endpoint ([endpoint.Request].Connections). When the lease has
// ended, unetd sends each peer a RST, as the kernel closes the connections of a process
// that has died. Nothing else depends on it.
type Connections struct {
	file *os.File
	mem  []byte
}

// NewConnections makes a table of 262,144 empty records. It takes memory, 16 bytes a
// record in whole pages, as records are first written to.
func NewConnections() (*Connections, error) {
	file, mem, err := xsk.NewTable()
	if err != nil {
		return nil, err
	}
	return &Connections{file, mem}, nil
}

// File is the descriptor that goes to unetd. It is closed by Close.
func (c *Connections) File() *os.File { return c.file }

// Records are the memory itself.
func (c *Connections) Records() []wire.Connection { return recordsOf(c.mem) }

// Close unmaps the memory: the records must not be touched any more.
func (c *Connections) Close() error { return xsk.CloseTable(c.file, c.mem) }
