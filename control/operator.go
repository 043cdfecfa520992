package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/unet-go/unet/endpoint"
)

// How much of a list goes into one record.
const (
	maxListTags = 256      // of an endpoint
	maxPage     = 48 << 10 // bytes of entries; one entry more may still begin within
)

// list gives the endpoints with identifiers after one, as many as fit.
func (s *session) list(after *uint64) (*[]endpoint.Info, bool, error) {
	all, err := s.provider.Endpoints(s.peer)
	if err != nil {
		return nil, false, err
	}
	all = append([]endpoint.Info{}, all...) // none: [], not null
	slices.SortFunc(all, func(a, b endpoint.Info) int { return cmp.Compare(a.ID, b.ID) })
	if after != nil {
		n, found := slices.BinarySearchFunc(all, *after, func(e endpoint.Info, id uint64) int { return cmp.Compare(e.ID, id) })
		if found {
			n++
		}
		all = all[n:]
	}
	for i := range all {
		e := &all[i]
		e.TagsTotal = max(e.TagsTotal, len(e.Tags))
		e.Tags = append([]endpoint.Tag{}, e.Tags[:min(len(e.Tags), maxListTags)]...)
	}
	n := pageOf(all)
	page := all[:n:n]
	return &page, n < len(all), nil
}

// counters gives the counters but the first after ones, as many as fit.
func (s *session) counters(after *uint64) (*[]endpoint.Counter, bool, error) {
	all, err := s.provider.Counters(s.peer)
	if err != nil {
		return nil, false, err
	}
	if after != nil {
		all = all[min(*after, uint64(len(all))):]
	}
	n := pageOf(all)
	page := append([]endpoint.Counter{}, all[:n]...)
	return &page, n < len(all), nil
}

// pageOf is how many entries go into a record: those that begin in its first
// maxPage bytes.
func pageOf[T any](entries []T) int {
	size := 0
	for i, e := range entries {
		if size > maxPage {
			return i
		}
		b, err := json.Marshal(e)
		if err != nil {
			panic(fmt.Sprintf("BUG: the provider's %+v makes no record: %v", e, err))
		}
		size += len(b) + 1
	}
	return len(entries)
}

// List asks the unetd that listens at socket for all its endpoints, by
// identifier. It is for operators: others get os.ErrPermission.
func List(ctx context.Context, socket string) ([]endpoint.Info, error) {
	var all []endpoint.Info
	err := askAll(ctx, socket, opList, func(a answer) (*uint64, error) {
		for _, e := range *a.Endpoints {
			if n := len(all); n > 0 && e.ID <= all[n-1].ID {
				return nil, violation("endpoint %d comes after %d", e.ID, all[n-1].ID)
			}
			all = append(all, e)
		}
		if !a.More || len(*a.Endpoints) == 0 {
			return nil, nil
		}
		return &all[len(all)-1].ID, nil
	})
	return all, err
}

// Counters asks the unetd that listens at socket for all its counters. It is
// for operators: others get os.ErrPermission.
func Counters(ctx context.Context, socket string) ([]endpoint.Counter, error) {
	var all []endpoint.Counter
	err := askAll(ctx, socket, opCounters, func(a answer) (*uint64, error) {
		all = append(all, *a.Counters...)
		if !a.More || len(*a.Counters) == 0 {
			return nil, nil
		}
		n := uint64(len(all))
		return &n, nil
	})
	return all, err
}

// askAll asks for a list, record by record. use takes each and says what to go
// on after, if at all.
func askAll(ctx context.Context, socket, op string, use func(answer) (*uint64, error)) error {
	conn, err := dial(ctx, socket)
	if err != nil {
		return err
	}
	c := newConnection(conn, nil)
	defer c.end()
	o := operation{op: op}
	for {
		a, err := c.ask(ctx, o)
		if errors.Is(err, errGone) {
			err = c.cause
		}
		if err == nil {
			o.after, err = use(a)
		}
		if err != nil {
			return fmt.Errorf("unetd at %s: %w", socket, err)
		}
		if o.after == nil {
			return nil
		}
	}
}
