// Package datapath sends and receives on an endpoint. An [endpoint.Grant] comes from
// unetd (package control, no privilege needed) or from a mux (package mux); [Attach]
// maps its segment and queues. After that sending costs one system call, the kick in Flush,
// and receiving none, unless the caller sleeps.
//
// # Messages
//
// Two endpoints exchange messages over a [Channel], a remote endpoint that has
// been resolved to a MAC address and a tag:
//
//	ch, err := ep.Channel(ctx, lease, host, remoteTag, localTag)
//
// The payload is copied into the segment, or composed there:
//
//	err = ep.Write(&ch, payload)
//
//	buf, err := ep.Reserve()
//	n := compose(buf.Payload())
//	err = ep.Send(&ch, buf, n)
//
//	err = ep.Flush() // one kick for all that is staged
//
// When the send queue is full, Send returns [ErrQueueFull] and the buffer stays the
// caller's: flush and try again. Nothing is dropped.
//
// Received messages are lent in place. They hold frames of the segment until they
// are returned:
//
//	for ep.Wait(time.Time{}) == nil {
//		n := ep.Borrow(msgs)
//		for i := range msgs[:n] {
//			use(msgs[i].Payload())
//			ep.Return(&msgs[i])
//		}
//	}
//
// To another endpoint of the same mux messages go by shared memory, as soon as there is a path, if the [Config] has the lease: then without
// a system call, unless the other end sleeps. They are still copied into the segment of who receives them. While such a path is full Send
// returns ErrQueueFull, but after a few milliseconds it drops what is for an endpoint that does not receive, as a full receive queue does.
//
// # Frames
//
// A protocol stack that has its own headers uses [Endpoint.Frames], which also take
// packets that are longer than a frame. Package segment describes how frames change owners. An application may hold all frames of the segment except those
// of the free queue and one eighth of the segment, which is for sending.
//
// An Endpoint belongs to one goroutine at a time. Wake and [Frames.Pending] may be called from any
// goroutine, and [Frames.Sleep] from one while another uses the queues.
package datapath
