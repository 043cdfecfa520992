package endpoint

import (
	"net/netip"
	"time"
)

// Status is the state of an endpoint and of the sockets that its process publishes, for an
// operator.
type Status struct {
	Info
	Command   string     `json:"command,omitempty"`    // name of the process; "" if it is not known
	FillQueue *uint32    `json:"fill_queue,omitempty"` // frames that the kernel can receive into; nil: not known, as on a queue
	Port      *PortCount `json:"port,omitempty"`       // nil on a queue
	// Published is what the process says about its endpoint, and Sockets about its sockets. It
	// may be false, but a socket is shown only if its local end is one of the endpoint's tags.
	Published *Published `json:"published,omitempty"` // nil: nothing is published
	Sockets   []Socket   `json:"sockets,omitempty"`
	// SocketsMore: more sockets follow, with the next record that unetd sends.
	SocketsMore bool `json:"sockets_more,omitempty"`
}

// PortCount counts frames at a port since it was made, in the kernel.
type PortCount struct {
	// FramesIn and BytesIn are to the endpoint. They are nil in tcx mode, in which frames go past
	// the device that counts; [Published] has what the process has received.
	FramesIn  *uint64 `json:"frames_in,omitempty"`
	BytesIn   *uint64 `json:"bytes_in,omitempty"`
	FramesOut uint64  `json:"frames_out"` // from the endpoint
	BytesOut  uint64  `json:"bytes_out"`
	DroppedIn uint64  `json:"dropped_in"` // to the endpoint, dropped because a processor's backlog was full
}

// Published is what a process publishes about its endpoint, at most ten times a second: frames
// since it was opened, and queues.
type Published struct {
	Sent             uint64 `json:"sent"`
	Received         uint64 `json:"received"`
	SendQueueFull    uint64 `json:"send_queue_full,omitempty"`    // sends refused
	NoBuffers        uint64 `json:"no_buffers,omitempty"`         // allocations refused
	Malformed        uint64 `json:"malformed,omitempty"`          // received and dropped: a header is wrong
	ReceiveQueueFull uint64 `json:"receive_queue_full,omitempty"` // dropped by the kernel
	FreeQueueEmpty   uint64 `json:"free_queue_empty,omitempty"`   // dropped by the kernel
	ReceiveDropped   uint64 `json:"receive_dropped,omitempty"`    // dropped by the kernel: no memory, or too long
	InvalidReceive   uint64 `json:"invalid_receive,omitempty"`    // entries of the free queue outside the segment
	InvalidSend      uint64 `json:"invalid_send,omitempty"`       // entries of the send queue outside the segment
	ReceiveQueue     uint32 `json:"receive_queue"`                // frames that wait
	SendQueue        uint32 `json:"send_queue"`                   // frames that wait

	// Frames by memory paths, which Sent and Received do not count.
	PathSent     uint64 `json:"path_sent,omitempty"`
	PathReceived uint64 `json:"path_received,omitempty"`
	PathDropped  uint64 `json:"path_dropped,omitempty"` // the path was full, no frame was free, or a tag belonged to another endpoint
}

// SocketState is the state of a socket by the name that ss(8) has for it in filters, such as
// established, listening, close-wait, or unconnected.
type SocketState string

// Socket is a socket that a process publishes: a TCP connection after its handshake and before
// TIME-WAIT, a TCP listener or a UDP socket.
type Socket struct {
	Record       uint32         `json:"record"`   // its place in the process's table
	Protocol     string         `json:"protocol"` // "tcp" or "udp"
	State        SocketState    `json:"state"`
	Local        netip.AddrPort `json:"local"`
	Remote       netip.AddrPort `json:"remote,omitzero"`    // zero: not connected
	ReceiveQueue uint32         `json:"receive_queue"`      // bytes not read; of a listener: connections not accepted
	SendQueue    uint32         `json:"send_queue"`         // bytes not acknowledged; of a listener: its backlog
	Received     uint64         `json:"received,omitempty"` // segments or datagrams
	Sent         uint64         `json:"sent,omitempty"`     // segments or datagrams
	Drops        uint32         `json:"drops,omitempty"`    // UDP: datagrams that found the queue full

	// Of TCP connections.
	RTT           time.Duration `json:"rtt_ns,omitempty"` // smoothed; 0: not measured
	RTTVar        time.Duration `json:"rtt_var_ns,omitempty"`
	RTO           time.Duration `json:"rto_ns,omitempty"`
	MSS           uint16        `json:"mss,omitempty"`           // bytes
	Window        uint32        `json:"cwnd,omitempty"`          // congestion window, bytes
	InFlight      uint32        `json:"in_flight,omitempty"`     // bytes
	BytesIn       uint64        `json:"bytes_in,omitempty"`      // received in order
	BytesAcked    uint64        `json:"bytes_acked,omitempty"`   // sent and acknowledged
	Retransmitted uint64        `json:"retransmitted,omitempty"` // segments sent again
}
