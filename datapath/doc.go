// Package datapath sends and receives on an endpoint: messages, frames, channels,
// upcalls and waiting, over the segment and the queues that a grant holds.
//
// # Getting one
//
// An [endpoint.Grant] is the one way in. Package control fetches it from unetd, for a
// process without any privilege; package mux makes it for a caller that has the
// capabilities. [Attach] maps what the grant holds. From then on the kernel is
// asked for one thing only: to look at the send queue (Flush).
//
// # Messages
//
// Two endpoints exchange messages over a [Channel], a remote endpoint that has
// been resolved to a link address and a tag:
//
//	ch, err := ep.Channel(ctx, lease, host, remoteTag, localTag)
//
// Sending is U-Net's two ways. Base-level: the payload is copied in.
//
//	err = ep.Write(&ch, payload)  // staged
//	err = ep.Flush()              // one kick for all that is staged
//
// Direct-access: it is composed in place, in the segment.
//
//	buf, err := ep.Alloc()
//	n := compose(buf.Payload())
//	err = ep.Send(&ch, buf, n)
//	err = ep.Flush()
//
// A full send queue is [ErrQueueFull], back-pressure and not a drop: the buffer
// stays the caller's, who flushes and tries again.
//
// Receiving lends messages in place. They hold memory of the segment until
// they are freed:
//
//	for ep.Wait(time.Time{}) == nil {
//		n := ep.Recv(msgs)
//		for i := range msgs[:n] {
//			use(msgs[i].Payload())
//			ep.Free(&msgs[i])
//		}
//	}
//
// # A frame's life
//
// Frames move between owners as package segment draws it: Recv takes them from
// the receive queue and puts as many from the pool on the free queue, so that
// the kernel never waits for the application; Free and completed sends put them
// back into the pool. What the application may hold at once is the segment
// less what the free queue needs and an eighth for sending.
//
// An endpoint whose grantor has died can neither send nor receive, and knows it only if the lease is
// in its [Config]: then Wait returns [endpoint.ErrLeaseClosed].
//
// Below messages there are frames (SendFrame, RecvFrames): what a protocol
// stack that brings its own headers works with. Packets that are longer than a frame
// (SendLong) leave in several descriptors.
//
// # Who may call
//
// An Endpoint belongs to one goroutine at a time; only Wake and Pending may be
// called from another, and Sleep by one goroutine while another has the queues.
// Run two endpoints for two goroutines: that is what they are for.
package datapath
