package unet

import (
	"context"
	"net/netip"
	"time"
)

// attemptDelay is the time after which the next address of a name is tried although the
// attempts at earlier ones have not ended (RFC 8305, section 5).
const attemptDelay = 250 * time.Millisecond

// interleave orders the addresses of a name, which are in the order of RFC 6724, so that the
// two families take turns (RFC 8305, section 4).
func interleave(list []netip.AddrPort) []netip.AddrPort {
	var first, second, sorted []netip.AddrPort
	for _, a := range list {
		if a.Addr().Is4() == list[0].Addr().Is4() {
			first = append(first, a)
		} else {
			second = append(second, a)
		}
	}
	for i := range max(len(first), len(second)) {
		sorted = append(sorted, first[min(i, len(first)):min(i+1, len(first))]...)
		sorted = append(sorted, second[min(i, len(second)):min(i+1, len(second))]...)
	}
	return sorted
}

// race calls dial for 0 to n-1, in their order, each attemptDelay after the one before, or at
// once if all before have failed, until one succeeds (RFC 8305, section 5). It ends the
// context of the others, and calls drop with the connection of one that succeeds
// nevertheless. If all fail the error is that of the first, as in package net.
func race[C any](ctx context.Context, n int, dial func(ctx context.Context, i int) (C, error), drop func(C)) (none C, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if n == 1 {
		return dial(ctx, 0)
	}
	type attempt struct {
		conn C
		i    int
		err  error
	}
	results := make(chan attempt, n)
	begun, running := 0, 0
	begin := func() {
		i := begun
		begun++
		running++
		go func() {
			c, err := dial(ctx, i)
			results <- attempt{c, i, err}
		}()
	}
	next := time.NewTicker(attemptDelay)
	defer next.Stop()
	for {
		switch more := begun < n && (begun == 0 || ctx.Err() == nil); {
		case running == 0 && !more:
			return none, err
		case running == 0:
			begin()
			next.Reset(attemptDelay)
		}
		select {
		case r := <-results:
			running--
			if r.err == nil {
				go func() {
					for range running {
						if late := <-results; late.err == nil {
							drop(late.conn)
						}
					}
				}()
				return r.conn, nil
			}
			if r.i == 0 {
				err = r.err
			}
		case <-next.C:
			if begun < n && ctx.Err() == nil {
				begin()
			}
		}
	}
}
