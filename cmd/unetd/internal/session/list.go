//go:build linux

package session

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/unet-go/unet/endpoint"
)

// How much of a list goes into one record.
const (
	maxListTags = 256      // of an endpoint
	maxPage     = 48 << 10 // bytes within which the last entry begins
)

// list returns the endpoints with identifiers above after (nil: all), as many as fit, and
// whether there are more.
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

// counters returns the counters without the first *after (nil: all), as many as fit, and
// whether there are more.
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

// pageOf is the number of entries that go into a record: those that begin in its first
// maxPage bytes.
func pageOf[T any](entries []T) int {
	size := 0
	for i, e := range entries {
		if size > maxPage {
			return i
		}
		b, err := json.Marshal(e)
		if err != nil {
			panic(fmt.Sprintf("BUG: %+v of the provider cannot be encoded: %v", e, err))
		}
		size += len(b) + 1
	}
	return len(entries)
}
