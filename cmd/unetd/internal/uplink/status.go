//go:build linux

package uplink

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// Status describes endpoints without their sockets.
func (us *Uplinks) Status(from uint64) (all []endpoint.Status, err error) {
	for _, m := range us.muxes() {
		list, err := m.Status(from)
		if errors.Is(err, mux.ErrClosed) { // its interface has just gone
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b endpoint.Status) int { return cmp.Compare(a.ID, b.ID) })
	for i := range all {
		all[i].Command = commandOf(all[i].PID)
	}
	return all, nil
}

// commandOf is the name of a process as the kernel has it, at most 15 characters, which the
// process can choose; "" if there is none. Characters that could control a terminal become ?.
func commandOf(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.TrimSuffix(string(name), "\n"))
}

// Sockets reads the sockets that the process of an endpoint publishes.
func (us *Uplinks) Sockets(id uint64, from uint32, n int) (list []endpoint.Socket, more bool, err error) {
	for _, m := range us.muxes() { // one at most has the endpoint
		list, more, err = m.Sockets(id, from, n)
		if len(list) > 0 || more || err != nil && !errors.Is(err, mux.ErrClosed) {
			return list, more, err
		}
	}
	return nil, false, nil
}
