package route

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpTries bounds how often an interrupted dump is made anew.
const dumpTries = 10

// Dump makes a netlink dump that is whole. The kernel reads its tables in
// pieces, and if one changes meanwhile it says so (NLM_F_DUMP_INTR) and may have
// left entries out.
func Dump[T any](dump func() ([]T, error)) (list []T, err error) {
	for range dumpTries {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}
