package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet"
)

// get fetches url n times over at most c connections.
func get(ctx context.Context, network unet.Network, url string, n, c int, output string) error {
	var connections atomic.Int64
	transport := &http.Transport{
		DialContext: func(ctx context.Context, nw, address string) (net.Conn, error) {
			connections.Add(1)
			return network.DialContext(ctx, nw, address)
		},
		MaxConnsPerHost:     c,
		MaxIdleConnsPerHost: c,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	if n == 1 {
		return getOne(ctx, client, url, output)
	}

	results := make([]result, n)
	next := make(chan int)
	var wg sync.WaitGroup
	start := time.Now()
	for range min(c, n) {
		wg.Go(func() {
			for i := range next {
				results[i] = fetch(ctx, client, url, io.Discard)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return report(results, connections.Load(), time.Since(start))
}

func getOne(ctx context.Context, client *http.Client, url, output string) error {
	to := os.Stdout
	if output != "" {
		var err error
		if to, err = os.Create(output); err != nil {
			return err
		}
	}
	r := fetch(ctx, client, url, to)
	if err := errors.Join(r.err, to.Close()); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s, %d bytes in %.2f ms, sha256 %x\n", r.status, r.bytes, milliseconds(r.took), r.sum.Sum(nil))
	return nil
}

// result is the result of one request.
type result struct {
	status string
	bytes  int64
	sum    hash.Hash
	took   time.Duration
	err    error
}

// fetch makes one request. A status that is not 200 is an error.
func fetch(ctx context.Context, client *http.Client, url string, to io.Writer) (r result) {
	start := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return result{err: err}
	}
	resp, err := client.Do(req)
	if err != nil {
		return result{err: err}
	}
	defer resp.Body.Close()
	r.status, r.sum = resp.Status, sha256.New()
	r.bytes, r.err = io.Copy(io.MultiWriter(to, r.sum), resp.Body)
	r.took = time.Since(start)
	switch {
	case r.err != nil:
		r.err = fmt.Errorf("%s: after %d bytes: %w", url, r.bytes, r.err)
	case resp.StatusCode != http.StatusOK:
		r.err = fmt.Errorf("%s: %s", url, r.status)
	}
	return r
}

// report prints the figures of all requests.
func report(results []result, connections int64, took time.Duration) error {
	var bytes int64
	var failed int
	var first error
	for _, r := range results {
		bytes += r.bytes
		if r.err != nil {
			failed++
			if first == nil {
				first = r.err
			}
		}
	}
	good := len(results) - failed
	fmt.Fprintf(os.Stderr, "%d requests over %d connections in %.2f ms: %d good, %d failed, %d bytes\n",
		len(results), connections, milliseconds(took), good, failed, bytes)
	results = slices.DeleteFunc(results, func(r result) bool { return r.err != nil })
	if len(results) > 0 {
		slices.SortFunc(results, func(a, b result) int { return cmp.Compare(a.took, b.took) })
		at := func(part float64) float64 { return milliseconds(results[int(part*float64(len(results)-1))].took) }
		fmt.Fprintf(os.Stderr, "a request took %.3f ms (median), %.3f ms (p99), %.3f ms (longest)\n", at(0.5), at(0.99), at(1))
	}
	if first != nil {
		return fmt.Errorf("%d of %d requests failed; the first: %w", failed, failed+good, first)
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
