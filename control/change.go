//go:build linux

package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// changeTags makes a claim or an unclaim. Only one is in progress at a time. It runs in a
// goroutine of its own, because it goes on when the caller's ctx has ended.
func (l *Lease) changeTags(ctx context.Context, o protocol.Operation) (endpoint.Tag, error) {
	select {
	case l.changing <- struct{}{}:
	case <-l.done:
		return endpoint.Tag{}, l.Err()
	case <-ctx.Done():
		return endpoint.Tag{}, context.Cause(ctx)
	}
	type result struct {
		tag endpoint.Tag
		err error
	}
	results, left := make(chan result), make(chan struct{})
	go func() {
		defer func() { <-l.changing }()
		tag, err := l.change(ctx, o)
		select {
		case results <- result{tag, err}:
		case <-left:
			if err == nil && o.Op == protocol.OpClaim {
				l.release(tag)
			}
		}
	}()
	select {
	case r := <-results:
		return r.tag, r.err
	case <-ctx.Done():
		close(left)
		return endpoint.Tag{}, context.Cause(ctx)
	}
}

// release asks unetd to release a tag whose claimant has gone. While unetd is busy, as when it
// is stopped, release tries again. After another error the tag stays claimed until the lease
// ends.
func (l *Lease) release(t endpoint.Tag) {
	for {
		if _, err := l.change(context.Background(), protocol.Operation{Op: protocol.OpUnclaim, Tag: t}); !errors.Is(err, endpoint.ErrBusy) {
			return
		}
		select {
		case <-time.After(longestBusy):
		case <-l.done:
			return
		}
	}
}

// change makes a claim or an unclaim. If the connection ends before the answer, it goes on
// with the next connection. When the request has been sent, the end of ctx does not end the
// wait: the result must be known before the next change.
//
// Without an answer, unetd may have made the change or not. Nothing else changes the
// endpoint's tags, so those in the answer to present show whether it has.
func (l *Lease) change(ctx context.Context, o protocol.Operation) (endpoint.Tag, error) {
	had := l.holds(o.Tag)
	for sent := false; ; {
		wait := ctx
		if sent {
			wait = context.Background()
		}
		c, err := l.connection(wait)
		if err != nil {
			return endpoint.Tag{}, err
		}
		if sent {
			if tag, ok := l.happened(o, had, c.tags); ok {
				l.note(o.Op, tag)
				return tag, nil
			}
			sent = false
		}
		request, err := c.send(ctx, o)
		if err == nil {
			var a protocol.Answer
			if a, err = c.wait(context.Background(), request); err == nil {
				tag := o.Tag
				if a.Tag != nil {
					tag = *a.Tag
				}
				l.note(o.Op, tag)
				return tag, nil
			}
			sent = true
		}
		if errors.Is(err, endpoint.ErrLeaseClosed) {
			// unetd ends the connection next. If it sends the event closed first, the lease has
			// ended, else only this unetd.
			<-c.done
			continue
		}
		if !errors.Is(err, errGone) {
			return endpoint.Tag{}, err
		}
	}
}

func (l *Lease) holds(t endpoint.Tag) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[t]
}

// note records the tag of an answer.
func (l *Lease) note(op string, t endpoint.Tag) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if op == protocol.OpClaim {
		l.held[t] = true
	} else {
		delete(l.held, t)
	}
}

// happened reports whether unetd made a change whose answer was lost, and of which tag. now
// are the endpoint's tags after it; had: it held o.Tag before. A claim of a tag that was
// held, and an unclaim of one that was not, change nothing and are repeated for their error.
func (l *Lease) happened(o protocol.Operation, had bool, now []endpoint.Tag) (endpoint.Tag, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.Op == protocol.OpUnclaim {
		return o.Tag, had && !slices.Contains(now, o.Tag)
	}
	for _, t := range now {
		if !l.held[t] && fits(t, o.Tag) {
			return t, true
		}
	}
	return endpoint.Tag{}, false
}

// fits reports whether t can be the answer to a claim of asked: any value fits a wildcard.
func fits(t, asked endpoint.Tag) bool {
	if t.Kind != asked.Kind || t.Block != asked.Block {
		return false
	}
	if t.Kind == endpoint.TagMessage {
		return asked.Message == 0 || t.Message == asked.Message
	}
	return (asked.Addr.IsUnspecified() || t.Addr == asked.Addr.Unmap()) && (asked.Port == 0 || t.Port == asked.Port)
}
