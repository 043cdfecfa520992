package datapath

// counters are the endpoint's own; plain words, because one goroutine has it.
type counters struct {
	sent, received        uint64
	queueFull, noBuffers  uint64
	malformed, notMessage uint64
}

// Stats are counters since Attach. The last group is the kernel's.
type Stats struct {
	Sent       uint64 // frames handed to the kernel
	Received   uint64 // frames taken from the receive queue
	Kicks      uint64 // system calls made to send
	QueueFull  uint64 // sends refused because the send queue was full
	NoBuffers  uint64 // allocations refused because the pool was empty
	Malformed  uint64 // received frames dropped: truncated, or a header that lies
	NotMessage uint64 // received frames dropped by Recv: not a U-Net message

	KernelRxDropped      uint64 // the frame did not fit, or the kernel had no memory
	KernelRxRingFull     uint64 // the receive queue was full
	KernelFillRingEmpty  uint64 // the free queue was empty
	KernelInvalidRxDescs uint64 // free queue entries outside the segment
	KernelInvalidTxDescs uint64 // send queue entries outside the segment
}

// Stats reads all counters, the kernel's with a system call.
func (e *Endpoint) Stats() (Stats, error) {
	k, err := e.sock.Statistics()
	c := &e.stats
	return Stats{
		Sent:       c.sent,
		Received:   c.received,
		Kicks:      e.sock.Kicks(),
		QueueFull:  c.queueFull,
		NoBuffers:  c.noBuffers,
		Malformed:  c.malformed,
		NotMessage: c.notMessage,

		KernelRxDropped:      k.RxDropped,
		KernelRxRingFull:     k.RxRingFull,
		KernelFillRingEmpty:  k.FillRingEmpty,
		KernelInvalidRxDescs: k.RxInvalidDescs,
		KernelInvalidTxDescs: k.TxInvalidDescs,
	}, err
}
