package policy

import (
	"fmt"
	"strconv"
)

// Bytes writes a size in the largest unit that it is a multiple of, as a policy
// file would have it.
func Bytes(n int64) string {
	if n == Unlimited {
		return "unlimited"
	}
	for _, unit := range []struct {
		shift uint
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n != 0 && n&(1<<unit.shift-1) == 0 {
			return fmt.Sprintf("%d%s", n>>unit.shift, unit.name)
		}
	}
	return strconv.FormatInt(n, 10)
}

// Count writes a limit of things.
func Count(n int64) string {
	if n == Unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}
