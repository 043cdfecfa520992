// Package verbs is RDMA in the process: the verbs of rdma-core over an endpoint, on the
// RoCEv2 wire. Peers are Go programs, RDMA network cards, and the kernel's Soft-RoCE.
//
//	ctx, err := verbs.Open(context, host, verbs.Config{})   // claims UDP port 4791 of the host's address
//	pd := ctx.AllocPD()
//	mr, err := pd.RegMR(buf, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
//	cq, err := ctx.CreateCQ(64, nil)
//	qp, err := ctx.CreateQP(pd, verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
//	err = qp.Init(verbs.AccessRemoteRead)                   // what the peer may do, beyond SEND
//	conn, err := ctx.Dial(context, peer, qp, nil)           // or exchange qp.Local() by hand: qp.Connect
//	qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled, SGList: list, RemoteAddr: at, RKey: key})
//	n, err := cq.Wait(wcs, deadline)
//
// Names are those of rdma-core in Go's form: ibv_post_send is [QP.PostSend], IBV_WC_REM_ACCESS_ERR is
// [StatusRemAccessErr]. This package waits and opens. What the verbs do is in package
// [github.com/unet-go/unet/proto/rdma], and its are [PD], [MR], [MW], [AH] and [SRQ].
//
// # Who does the work
//
// The engine runs in whichever goroutine polls the host: one that waits in [CQ.Wait] or in a
// socket's call, one that calls [CQ.Poll] or [Context.Poll], that of [Context.Serve], or, if
// there is none of these, the host's caretaker, which sleeps until a frame comes. No
// application code takes part in a one-sided operation.
//
// A call takes one lock, and what it sends leaves with one kick. Posting a list of work
// requests is one call. Calls do not allocate, except those that create something.
//
// # Errors
//
// The error of an illegal call names the object and the rule. Errors of calls that block are
// net.Errors: os.ErrDeadlineExceeded, that of the context.Context, or the end of the host
// (endpoint.ErrLeaseClosed, net.ErrClosed). After the end of a context, or of an object, its calls return
// net.ErrClosed. What goes wrong with a work request comes as the
// [Status] of its completion.
//
// docs/rdma.md explains memory, and lists what is there and what is not.
package verbs
