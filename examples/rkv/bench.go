package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/examples/rkv/kv"
	"github.com/unet-go/unet/verbs"
)

type benchOptions struct {
	clients  []int
	duration time.Duration
	rounds   int
	keys     int
	value    int // bytes
	json     bool
}

// result is a row of the table: one kind of lookup with one number of clients.
type result struct {
	Clients int       `json:"clients"`
	By      string    `json:"by"`                // "read" or "udp"
	Rounds  []float64 `json:"lookups_a_second"`  // of each round
	Median  float64   `json:"median"`            // of them
	Torn    uint64    `json:"torn_reads"`        // READs that were repeated
	Lost    uint64    `json:"unanswered_by_udp"` // requests that were repeated
}

// getter is a client: one lookup at a time.
type getter interface {
	Get(key string, value []byte) ([]byte, error)
	Close() error
}

func bench(ctx context.Context, host *unet.Host, rdma *verbs.Context, to netip.AddrPort, o benchOptions, out io.Writer) error {
	keys := make([]string, o.keys)
	loader, err := kv.Dial(ctx, rdma, to)
	if err != nil {
		return err
	}
	defer loader.Close()
	for i := range keys {
		keys[i] = fmt.Sprintf("bench %d", i)
		if err := loader.Put(keys[i], bytes.Repeat([]byte{byte(i)}, o.value)); err != nil {
			return fmt.Errorf("put %q: %w", keys[i], err)
		}
	}
	var results []result
	for _, n := range o.clients {
		r, err := o.compare(ctx, host, rdma, to, n, keys)
		if err != nil {
			return err
		}
		results = append(results, r...)
	}
	for _, key := range keys {
		if err := loader.Delete(key); err != nil {
			return fmt.Errorf("delete %q: %w", key, err)
		}
	}
	if o.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"keys": o.keys, "value_bytes": o.value, "round_seconds": o.duration.Seconds(), "results": results})
	}
	return o.print(out, results)
}

// compare measures both kinds of lookups with n clients of each.
func (o benchOptions) compare(ctx context.Context, host *unet.Host, rdma *verbs.Context, to netip.AddrPort, n int, keys []string) (results []result, err error) {
	var lost atomic.Uint64
	var clients [2][]getter
	defer func() {
		for _, c := range slices.Concat(clients[0], clients[1]) {
			c.Close()
		}
	}()
	for range n {
		byRead, err := kv.Dial(ctx, rdma, to)
		if err != nil {
			return nil, err
		}
		clients[0] = append(clients[0], byRead)
		conn, err := host.DialUDP(ctx, netip.AddrPort{}, to)
		if err != nil {
			return nil, err
		}
		clients[1] = append(clients[1], &udpClient{conn: conn, lost: &lost})
	}
	results = []result{{Clients: n, By: "read"}, {Clients: n, By: "udp"}}
	for range o.rounds {
		for i := range results {
			rate, err := o.round(ctx, clients[i], keys)
			if err != nil {
				return nil, fmt.Errorf("lookups by %s: %w", results[i].By, err)
			}
			results[i].Rounds = append(results[i].Rounds, rate)
		}
	}
	for i := range results {
		sorted := slices.Sorted(slices.Values(results[i].Rounds))
		results[i].Median = sorted[len(sorted)/2]
	}
	for _, c := range clients[0] {
		results[0].Torn += c.(*kv.Client).Torn()
	}
	results[1].Lost = lost.Load()
	return results, nil
}

// round is one round of lookups by all clients. It returns their rate, a second.
func (o benchOptions) round(ctx context.Context, clients []getter, keys []string) (float64, error) {
	var total atomic.Uint64
	errs := make([]error, len(clients))
	var wg sync.WaitGroup
	start := time.Now()
	for i, c := range clients {
		wg.Go(func() {
			value := make([]byte, 0, 65536)
			n := 0
			for k := i * len(keys) / len(clients); errs[i] == nil && ctx.Err() == nil && time.Since(start) < o.duration; k++ {
				value, errs[i] = c.Get(keys[k%len(keys)], value[:0])
				if errs[i] == nil && len(value) != o.value {
					errs[i] = fmt.Errorf("a value of %d bytes, want %d", len(value), o.value)
				}
				n++
			}
			total.Add(uint64(n))
		})
	}
	wg.Wait()
	took := time.Since(start)
	return float64(total.Load()) / took.Seconds(), errors.Join(append(errs, ctx.Err())...)
}

func (o benchOptions) print(out io.Writer, results []result) error {
	fmt.Fprintf(out, "lookups a second: %d keys, values of %d bytes, one lookup at a time by each client; median (least to most) of %d rounds of %v\n", o.keys, o.value, o.rounds, o.duration)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "clients\tby READ\tby request and reply over UDP\tREAD / UDP\ttorn\tunanswered")
	figure := func(r result) string {
		return fmt.Sprintf("%.0f (%.0f to %.0f)", r.Median, slices.Min(r.Rounds), slices.Max(r.Rounds))
	}
	for i := 0; i < len(results); i += 2 {
		read, udp := results[i], results[i+1]
		fmt.Fprintf(w, "%d\t%s\t%s\t%.2f\t%d\t%d\n", read.Clients, figure(read), figure(udp), read.Median/udp.Median, read.Torn, udp.Lost)
	}
	return w.Flush()
}

// udpClient looks keys up by a request and its reply.
type udpClient struct {
	conn   *unet.UDPConn
	number uint32
	buf    [65536]byte
	lost   *atomic.Uint64
}

const replyTimeout = time.Second

func (c *udpClient) Close() error { return c.conn.Close() }

func (c *udpClient) Get(key string, value []byte) ([]byte, error) {
	c.number++
	for range 5 {
		request := append(binary.BigEndian.AppendUint32(c.buf[:0], c.number), key...)
		c.conn.SetReadDeadline(time.Now().Add(replyTimeout))
		if _, err := c.conn.Write(request); err != nil {
			return value, err
		}
		for {
			n, err := c.conn.Read(c.buf[:])
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.lost.Add(1)
				break
			}
			if err != nil {
				return value, err
			}
			if n <= numberLen || binary.BigEndian.Uint32(c.buf[:]) != c.number {
				continue // a late reply
			}
			if c.buf[numberLen] == 0 {
				return value, kv.ErrNotFound
			}
			return append(value, c.buf[numberLen+1:n]...), nil
		}
	}
	return value, errors.New("no reply to 5 requests")
}
