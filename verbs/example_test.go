//go:build linux

package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/verbs"
)

// exampleContexts are the devices of two hosts on a link in memory, so that the examples run
// without root. A program gets one from a host of unet.Open:
//
//	host, err := unet.Open(ctx, unet.Config{})
//	device, err := verbs.Open(ctx, host, verbs.Config{})
func exampleContexts() (a, b *verbs.Context, closeAll func()) {
	linkA, linkB := memlink.Pair(memlink.Config{})
	open := func(l *memlink.Link, n int) (*stack.Stack, *verbs.Context) {
		s, addr := newMemStack(l, n, stack.Config{})
		c, err := verbs.OpenOn(s, addr, verbs.Config{})
		if err != nil {
			log.Fatal(err)
		}
		return s, c
	}
	stackA, a := open(linkA, 1)
	stackB, b := open(linkB, 2)
	return a, b, func() {
		for _, close := range []func() error{a.Close, b.Close, stackA.Close, stackB.Close} {
			if err := close(); err != nil {
				log.Fatal(err)
			}
		}
	}
}

// exampleQP is what most programs begin with: a queue pair with one completion queue, and a
// registered buffer.
func exampleQP(c *verbs.Context, access verbs.Access) (*verbs.QP, *verbs.CQ, *verbs.MR) {
	pd := c.AllocPD()
	mr, err := pd.RegMR(make([]byte, 4096), access|verbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	cq, err := c.CreateCQ(16, nil)
	if err != nil {
		log.Fatal(err)
	}
	qp, err := c.CreateQP(pd, verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}})
	if err != nil {
		log.Fatal(err)
	}
	return qp, cq, mr
}

// exampleWait waits for one completion.
func exampleWait(cq *verbs.CQ) verbs.WC {
	var wcs [1]verbs.WC
	if _, err := cq.Wait(wcs[:], time.Now().Add(time.Minute)); err != nil {
		log.Fatal(err)
	}
	return wcs[0]
}

// A server listens, a client dials, and a message goes from one to the other. The other end may
// as well be a program with librdmacm.
func ExampleContext_Dial() {
	client, server, closeAll := exampleContexts()
	defer closeAll()

	listener, err := server.Listen(7471, 0)
	if err != nil {
		log.Fatal(err)
	}
	received := make(chan string)
	go func() {
		request, err := listener.Accept(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		qp, cq, mr := exampleQP(server, 0)
		if err := qp.Init(0); err != nil { // the peer may SEND only
			log.Fatal(err)
		}
		if _, err := qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 100)}}); err != nil { // before the first message can come
			log.Fatal(err)
		}
		if _, err := request.Accept(context.Background(), qp, nil); err != nil {
			log.Fatal(err)
		}
		wc := exampleWait(cq)
		received <- string(mr.Bytes()[:wc.ByteLen])
	}()

	qp, _, _ := exampleQP(client, 0)
	conn, err := client.Dial(context.Background(), listener.Addr(), qp, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if _, err := qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, Inline: []byte("hello")}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-received)
	// Output: hello
}

// Two programs that know each other's address, queue pair number and first PSN, by whatever way,
// need no connection manager. The queue pair that is connected first may send at once: what
// finds the other not ready is repeated.
func ExampleQP_Connect() {
	deviceA, deviceB, closeAll := exampleContexts()
	defer closeAll()

	a, cq, _ := exampleQP(deviceA, 0)
	b, _, memory := exampleQP(deviceB, verbs.AccessRemoteWrite)
	for _, qp := range []*verbs.QP{a, b} {
		if err := qp.Init(verbs.AccessRemoteWrite); err != nil {
			log.Fatal(err)
		}
	}
	// Each program sends Local to the other, over TCP for instance.
	if err := a.Connect(b.Local()); err != nil {
		log.Fatal(err)
	}
	if err := b.Connect(a.Local()); err != nil {
		log.Fatal(err)
	}
	_, err := a.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendInline | verbs.SendSignaled, Inline: []byte("written"),
		RemoteAddr: memory.Addr(), RKey: memory.RKey(), // these, too, b's program has sent
	})
	if err != nil {
		log.Fatal(err)
	}
	wc := exampleWait(cq)
	fmt.Println(wc.Opcode, wc.Status)
	fmt.Printf("%s\n", memory.Bytes()[:7])
	// Output:
	// RDMA_WRITE success
	// written
}

// A one-sided READ: the target's program does nothing.
func ExampleQP_PostSend() {
	deviceA, deviceB, closeAll := exampleContexts()
	defer closeAll()
	a, cq, mine := exampleQP(deviceA, 0)
	b, _, theirs := exampleQP(deviceB, verbs.AccessRemoteRead)
	copy(theirs.Bytes()[1000:], "what is there")
	exampleConnect(a, b)

	_, err := a.PostSend(verbs.SendWR{
		WRID: 1, Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled,
		SGList:     []verbs.SGE{mine.SGE(0, 13)},
		RemoteAddr: theirs.Addr() + 1000, RKey: theirs.RKey(),
	})
	if err != nil { // about the call: the queue is full, the state, the list
		log.Fatal(err)
	}
	if wc := exampleWait(cq); wc.Status != verbs.StatusSuccess { // about the operation
		log.Fatal(wc.Status)
	}
	fmt.Printf("%s\n", mine.Bytes()[:13])

	// A READ with a key that is wrong fails, and the queue pair with it.
	_, err = a.PostSend(verbs.SendWR{
		WRID: 2, Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{mine.SGE(0, 13)}, RemoteAddr: theirs.Addr(), RKey: ^theirs.RKey(),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(exampleWait(cq).Status)
	fmt.Println(a.State())
	// Output:
	// what is there
	// remote access error
	// ERR
}

// A counter in remote memory. The atomic operations of peers and those of the program that has
// the memory act on the same word.
func ExampleMR_Word() {
	deviceA, deviceB, closeAll := exampleContexts()
	defer closeAll()
	a, cq, result := exampleQP(deviceA, 0)
	b, _, memory := exampleQP(deviceB, verbs.AccessRemoteAtomic)
	exampleConnect(a, b)

	counter := memory.Word(64)
	counter.Store(100)
	add := verbs.SendWR{
		Opcode: verbs.WRAtomicFetchAndAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{result.SGE(0, 8)},
		RemoteAddr: memory.Addr() + 64, RKey: memory.RKey(), CompareAdd: 5,
	}
	if _, err := a.PostSend(add); err != nil {
		log.Fatal(err)
	}
	exampleWait(cq)
	fmt.Println("before:", result.Word(0).Load())
	fmt.Println("after: ", counter.Add(1))

	swap := add
	swap.Opcode, swap.CompareAdd, swap.Swap = verbs.WRAtomicCmpAndSwp, 106, 7
	if _, err := a.PostSend(swap); err != nil {
		log.Fatal(err)
	}
	exampleWait(cq)
	fmt.Println("before:", result.Word(0).Load())
	fmt.Println("after: ", counter.Load())
	// Output:
	// before: 100
	// after:  106
	// before: 106
	// after:  7
}

// The software NIC: a goroutine that does nothing but poll, so that remote accesses are served
// at once, whatever the application's goroutines do.
func ExampleContext_Serve() {
	device, _, closeAll := exampleContexts()
	defer closeAll()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- device.Serve(ctx) }()

	// … the application registers memory and works …

	cancel()
	fmt.Println(errors.Is(<-served, context.Canceled))
	// Output: true
}

// exampleConnect connects two queue pairs, with all accesses that the regions allow.
func exampleConnect(a, b *verbs.QP) {
	for _, qp := range []*verbs.QP{a, b} {
		if err := qp.Init(verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic); err != nil {
			log.Fatal(err)
		}
	}
	if err := errors.Join(a.Connect(b.Local()), b.Connect(a.Local())); err != nil {
		log.Fatal(err)
	}
}
