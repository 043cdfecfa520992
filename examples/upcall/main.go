// Upcall exchanges U-Net messages, without TCP or UDP. The server answers in a receive upcall: a
// function that the endpoint calls when messages have arrived. The client waits for its answers.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
)

const usage = `usage:
  upcall [--socket PATH] serve TAG             answers messages to the tag with the sum of their 64-bit numbers
  upcall [--socket PATH] ask   ADDR TAG NUMBER ...
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	socket := flag.String("socket", unet.DefaultSocket, "")
	flag.Parse()
	if err := run(ctx, *socket, flag.Args()); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "upcall:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, socket string, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		tag, err := strconv.ParseUint(args[1], 10, 32)
		if err != nil {
			return err
		}
		ep, lease, err := open(ctx, socket, uint32(tag))
		if err != nil {
			return err
		}
		defer lease.Close()
		defer ep.Close()
		fmt.Println("listening on tag", tag)
		return serve(ctx, ep)
	case len(args) > 3 && args[0] == "ask":
		to, err := netip.ParseAddr(args[1])
		if err != nil {
			return err
		}
		tag, err := strconv.ParseUint(args[2], 10, 32)
		if err != nil {
			return err
		}
		var numbers []uint64
		for _, arg := range args[3:] {
			n, err := strconv.ParseUint(arg, 10, 64)
			if err != nil {
				return err
			}
			numbers = append(numbers, n)
		}
		ep, lease, err := open(ctx, socket, 0)
		if err != nil {
			return err
		}
		defer lease.Close()
		defer ep.Close()
		sum, err := ask(ctx, ep, lease, to, uint32(tag), numbers)
		if err == nil {
			fmt.Println(sum)
		}
		return err
	default:
		return errors.New("want serve or ask, and what they need (see upcall --help)")
	}
}

// open asks unetd for an endpoint with a message tag; tag 0 is any that is free.
func open(ctx context.Context, socket string, tag uint32) (*datapath.Endpoint, endpoint.Lease, error) {
	grant, lease, err := control.Open(ctx, socket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(tag)}})
	if err != nil {
		return nil, nil, err
	}
	ep, err := datapath.Attach(grant, datapath.Config{Lease: lease})
	if err != nil {
		return nil, nil, errors.Join(err, grant.Close(), lease.Close())
	}
	return ep, lease, nil
}

// serve answers messages until ctx ends.
func serve(ctx context.Context, ep *datapath.Endpoint) error {
	ep.Upcall(datapath.NonEmpty, answer)
	return ep.Serve(ctx) // calls answer, and sleeps while nothing arrives
}

// header is the length of a query's number, which its answer repeats, in bytes.
const header = 8

// answer is the upcall. It drains the receive queue, and sends all answers by one system call.
func answer(ep *datapath.Endpoint) {
	var queries [32]datapath.Message
	for n := ep.Borrow(queries[:]); n > 0; n = ep.Borrow(queries[:]) {
		for i := range queries[:n] {
			query := queries[i].Payload() // in the segment, where the kernel has put it
			if len(query) < header || len(query)%8 != 0 {
				continue
			}
			buf, err := ep.Reserve()
			if err != nil {
				continue // all buffers are in the send queue; the client asks again
			}
			sum := uint64(0)
			for b := query[header:]; len(b) > 0; b = b[8:] {
				sum += binary.BigEndian.Uint64(b)
			}
			reply := append(buf.Payload()[:0], query[:header]...) // composed in place
			reply = binary.BigEndian.AppendUint64(reply, sum)
			ch := ep.ReplyChannel(&queries[i])
			if err := ep.Send(&ch, buf, len(reply)); err != nil {
				fmt.Fprintln(os.Stderr, "upcall: not answered:", err)
			}
		}
		ep.ReturnBatch(queries[:n])
		if err := ep.Flush(); err != nil {
			fmt.Fprintln(os.Stderr, "upcall: not sent:", err)
		}
	}
}

// answerTimeout is how long a query waits for its answer before it is sent again.
const answerTimeout = 100 * time.Millisecond

// ask asks for the sum of numbers. Messages can be lost, so it asks up to ten times.
func ask(ctx context.Context, ep *datapath.Endpoint, lease endpoint.Lease, to netip.Addr, tag uint32, numbers []uint64) (uint64, error) {
	ch, err := ep.Channel(ctx, lease, to, tag, ep.Tags()[0].Message)
	if err != nil {
		return 0, err
	}
	id := rand.Uint64()
	query := binary.BigEndian.AppendUint64(nil, id)
	for _, n := range numbers {
		query = binary.BigEndian.AppendUint64(query, n)
	}
	for range 10 {
		if err := ep.Write(&ch, query); err != nil {
			return 0, err
		}
		for deadline := time.Now().Add(answerTimeout); ; {
			if err := ep.Wait(deadline); errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				return 0, err
			}
			var m [1]datapath.Message
			if ep.Borrow(m[:]) == 0 {
				continue
			}
			reply := m[0].Payload()
			is := len(reply) == header+8 && binary.BigEndian.Uint64(reply) == id
			sum := uint64(0)
			if is {
				sum = binary.BigEndian.Uint64(reply[header:])
			}
			ep.Return(&m[0])
			if is {
				return sum, nil
			}
		}
	}
	return 0, fmt.Errorf("no answer from %v, tag %d", to, tag)
}
