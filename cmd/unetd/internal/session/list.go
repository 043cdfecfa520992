//go:build linux

package session

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// How much of a list goes into one record.
const (
	maxListTags = 256      // of an endpoint
	maxPage     = 48 << 10 // bytes of all entries, unless the first is longer

	maxRouteAddrs = 256 // of all uplinks, in the answer to route
)

// list returns the endpoints with identifiers above after (nil: all), as many as fit, and
// whether there are more.
func (s *session) list(after *uint64) (*[]endpoint.Info, bool) {
	all := append([]endpoint.Info{}, s.provider.Endpoints()...) // none: [], not null
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
	return &page, n < len(all)
}

// counters returns the counters without the first *after (nil: all), as many as fit, and
// whether there are more.
func (s *session) counters(after *uint64) (*[]endpoint.Counter, bool, error) {
	all, err := s.provider.Counters()
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

// status returns the endpoints after one, and before them the sockets of that one after a
// record, as many as fit, and whether there are more.
func (s *session) status(after *uint64, socket *uint32) (*[]endpoint.Status, bool, error) {
	var from uint64
	var record uint32
	switch {
	case socket != nil:
		from, record = *after, *socket+1
		if record == 0 {
			return nil, false, protocol.Violation("status: socket %d: no table has it", *socket)
		}
	case after != nil:
		from = *after + 1
	}
	page := []endpoint.Status{} // none: [], not null
	if after != nil && from == 0 {
		return &page, false, nil
	}
	all, err := s.provider.Status(from)
	if err != nil {
		return nil, false, err
	}
	size := 0
	for i := range all {
		e := &all[i]
		if size > maxPage {
			return &page, true, nil
		}
		if e.ID != from || socket == nil {
			record = 0
		}
		e.TagsTotal = max(e.TagsTotal, len(e.Tags))
		e.Tags = append([]endpoint.Tag{}, e.Tags[:min(len(e.Tags), maxStatusTags)]...)
		size += sizeOf(*e)
		for more := true; more; {
			var sockets []endpoint.Socket
			if sockets, more, err = s.provider.Sockets(e.ID, record, socketsAtOnce); err != nil {
				return nil, false, err
			}
			for k, socket := range sockets {
				if e.Sockets = append(e.Sockets, socket); size > maxPage {
					e.SocketsMore = more || k < len(sockets)-1
					more = false
					break
				}
				size += sizeOf(socket)
				record = socket.Record + 1
			}
			more = more && len(sockets) > 0
		}
		page = append(page, *e)
		if e.SocketsMore {
			return &page, true, nil
		}
	}
	return &page, false, nil
}

const (
	maxStatusTags = 64 // of an endpoint
	socketsAtOnce = 32 // read from the table of a process
)

// pageOf is the number of entries that go into a record: the first, and those that end within
// maxPage bytes.
func pageOf[T any](entries []T) int {
	size := 0
	for i, e := range entries {
		if size += sizeOf(e); size > maxPage && i > 0 {
			return i
		}
	}
	return len(entries)
}

// sizeOf is the length of an entry of a list, with the comma, in bytes. An entry that cannot be
// encoded has none: send reports it.
func sizeOf(entry any) int {
	b, _ := json.Marshal(entry)
	return len(b) + 1
}
