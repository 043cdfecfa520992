package workload

import (
	"encoding/binary"
	"time"
)

// Conn is a transport between exactly two processes. It keeps message
// boundaries. A Conn belongs to one goroutine.
//
// Messages are at least [MinSize] bytes long.
type Conn interface {
	// Send sends one message. It is on its way when Send returns; a full queue
	// is waited for.
	Send(b []byte) error
	// SendBatch sends all of bs, with as few system calls as the transport can.
	SendBatch(bs [][]byte) error
	// Recv waits for a message and lends it until the next call of the Conn.
	Recv() ([]byte, error)
	// RecvBatch waits for at least one message and takes what else is there,
	// up to len(bs). They are lent until the next call of the Conn.
	RecvBatch(bs [][]byte) (int, error)
	// Reply sends the message that Recv lent last back to where it came from.
	Reply() error
	// SetDeadline is when waiting calls give up, with os.ErrDeadlineExceeded.
	// They may notice up to some milliseconds late.
	SetDeadline(t time.Time) error
	Close() error
}

// Kind is a message's phase or purpose.
type Kind uint8

const (
	Warm   Kind = iota + 1
	Mark        // begin of the measured section; returned
	Data        // measured
	End         // end of the measured section; returned
	Credit      // oneway, from the server: it has seen the messages below Seq
	Done        // oneway, from the server: it has all
)

// MinSize is the smallest message: the header that [Put] writes.
const MinSize = 16

// RecvBatchSize is how many messages the receiving side asks for at once, when
// messages are sent in batches.
const RecvBatchSize = 64

// Put writes a message's header.
func Put(b []byte, k Kind, seq uint64) {
	binary.LittleEndian.PutUint64(b, seq)
	b[8] = byte(k)
	b[9] = magic
}

// Header reads what Put wrote. Kind 0 is not a message of ours.
func Header(b []byte) (Kind, uint64) {
	if len(b) < MinSize || b[9] != magic {
		return 0, 0
	}
	return Kind(b[8]), binary.LittleEndian.Uint64(b)
}

const magic = 0xb5
