package tcp

import "time"

// Info is what there is to know about a connection at a moment: what TCP_INFO is
// to Linux. Sizes are in bytes.
type Info struct {
	State         State
	Local, Remote AddrPort

	Timestamps, WindowScale, SACK, ECN bool // agreed on
	SendScale, ReceiveScale            uint8
	SendMSS, ReceiveMSS                int
	PathMTU                            int // of what is sent, bytes of IP packet

	RTT, RTTVar, RTO time.Duration // RTT is smoothed; 0: not measured yet
	Backoff          int           // how often the retransmission timer has run out in a row

	SendWindow       uint32 // the peer's
	ReceiveWindow    uint32 // ours, as advertised
	SendBuffer       int    // bound of what is written and not acknowledged
	ReceiveBuffer    int    // of what is received and not read
	CongestionWindow int
	InFlight         int
	Unsent           int // written, not yet sent
	Buffered         int // received, not yet read
	OutOfOrder       int // received out of order
	Sacked           int // of InFlight, what the peer has out of order
	Lost             int // of InFlight, what is to be sent again

	SegmentsReceived, SegmentsSent uint64
	BytesReceived, BytesAcked      uint64
	BytesRetransmitted             uint64
	Retransmissions                uint64 // segments
	Timeouts                       uint64
	Recoveries                     uint64 // fast ones
	DuplicateAcks                  uint64
	OutOfOrderSegments             uint64

	SoftErr error // the last ICMP error that did not end the connection, a syscall.Errno; or nil
}

// Info returns the state of the connection.
func (c *Conn) Info() Info {
	i := Info{
		State: c.state, Local: c.Local(), Remote: c.Remote(),
		Timestamps: c.timestamps, WindowScale: c.scaling, SACK: c.sack, ECN: c.ecn,
		SendScale: c.sndScale, ReceiveScale: c.rcvScale, SendMSS: c.mss, ReceiveMSS: c.rcvMSS(), PathMTU: c.path.mtu,
		RTT: c.srtt, RTTVar: c.rttvar, RTO: c.rto, Backoff: int(c.backoff),
		SendWindow: c.sndWnd, ReceiveWindow: c.rcvAdv.From(c.rcvNxt),
		SendBuffer: c.opts.SendBuffer, ReceiveBuffer: c.opts.ReceiveBuffer,
		CongestionWindow: c.window, Buffered: c.recv.bytes, Sacked: c.board.sacked, Lost: c.board.lost,
		SegmentsReceived: c.stat.segmentsIn, SegmentsSent: c.stat.segmentsOut,
		BytesReceived: c.stat.bytesIn, BytesAcked: c.stat.bytesOut,
		BytesRetransmitted: c.stat.bytesRetransmitted, Retransmissions: c.stat.retransmitted,
		Timeouts: c.stat.timeouts, Recoveries: c.stat.recoveries, DuplicateAcks: c.stat.duplicateAcks, OutOfOrderSegments: c.stat.outOfOrder,
		SoftErr: c.SoftErr(),
	}
	if c.state != Closed && c.state != TimeWait {
		i.InFlight = int(c.sndMax.From(c.sndUna))
		i.Unsent = max(0, c.send.bytes-int(c.sndNxt.From(c.sndUna)))
	}
	for _, r := range c.outOfOrder.runs {
		i.OutOfOrder += int(r.right.From(r.left))
	}
	return i
}
