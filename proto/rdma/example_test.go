package rdma_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/unet-go/unet/proto/rdma"
	"github.com/unet-go/unet/wire"
)

// exampleQP is a queue pair with its completion queue, and a registered buffer that the peer may read.
func exampleQP(d *rdma.Device) (*rdma.QP, *rdma.CQ, *rdma.MR) {
	pd := d.AllocPD()
	mr, err := pd.RegMR(make([]byte, 64), rdma.AccessLocalWrite|rdma.AccessRemoteRead)
	if err != nil {
		panic(err)
	}
	cq, err := d.CreateCQ(16)
	if err != nil {
		panic(err)
	}
	qp, err := d.CreateQP(pd, rdma.QPInit{Type: rdma.RC, SendCQ: cq, RecvCQ: cq, Cap: rdma.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		panic(err)
	}
	return qp, cq, mr
}

// exampleConnect moves a queue pair to RTS. Both ends begin at PSN 0 here; a program uses [rdma.Device.RandomPSN].
func exampleConnect(qp *rdma.QP, peer [4]byte, peerQPN uint32) {
	a := rdma.QPAttr{AccessFlags: rdma.AccessRemoteRead, PathMTU: rdma.MTU1024, AH: rdma.AHAttr{Dst: peer}, DestQPN: peerQPN,
		Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 1, MaxDestRDAtomic: 1}
	for _, move := range []struct {
		to   rdma.State
		mask rdma.QPAttrMask
	}{
		{rdma.StateInit, rdma.QPAccessFlags},
		{rdma.StateRTR, rdma.QPAV | rdma.QPPathMTU | rdma.QPDestQPN | rdma.QPRQPSN | rdma.QPMaxDestRDAtomic | rdma.QPMinRNRTimer},
		{rdma.StateRTS, rdma.QPTimeout | rdma.QPRetryCnt | rdma.QPRNRRetry | rdma.QPSQPSN | rdma.QPMaxQPRDAtomic},
	} {
		a.State = move.to
		if err := qp.Modify(0, &a, rdma.QPState|move.mask); err != nil {
			panic(err)
		}
	}
}

// Two devices side by side, and a one-sided READ: the packets that one emits are the other's
// input. A driver puts sockets, a clock and [rdma.Device.Deadline] in the place of the loop.
func Example() {
	addrs := [2][4]byte{{10, 0, 0, 1}, {10, 0, 0, 2}}
	var devices [2]*rdma.Device
	for i, a := range addrs {
		devices[i] = rdma.New(rdma.Config{Addr: a, Rand: rand.NewPCG(uint64(i), 0)}) // PCG is predictable: only for examples
	}
	qp, cq, mr := exampleQP(devices[0])
	peer, _, remote := exampleQP(devices[1])
	exampleConnect(qp, addrs[1], peer.Num())
	exampleConnect(peer, addrs[0], qp.Num())
	copy(remote.Bytes(), "read without the peer's help")

	if _, err := qp.PostSend(0, []rdma.SendWR{{WRID: 7, Opcode: rdma.WRRDMARead, Flags: rdma.SendSignaled,
		SGList: []rdma.SGE{mr.SGE(0, 28)}, RemoteAddr: remote.Addr(), RKey: remote.RKey()}}); err != nil {
		panic(err)
	}
	var wcs [1]rdma.WC
	for cq.Poll(wcs[:]) == 0 {
		for i, d := range devices {
			for ready := d.Ready(false); ready != nil; ready = d.Ready(false) {
				b := make([]byte, ready.Room())
				b = b[:ready.Emit(0, b)]
				devices[1-i].Process(0, &rdma.Packet{IP: b, Src: addrs[i], SrcPort: wire.RoCEPort, Data: b[wire.RoCEOffset:]})
			}
		}
	}
	fmt.Printf("work request %d: %v, %q\n", wcs[0].WRID, wcs[0].Status, mr.Bytes()[:wcs[0].ByteLen])
	// Output: work request 7: success, "read without the peer's help"
}
