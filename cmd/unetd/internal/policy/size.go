package policy

import (
	"strconv"

	"github.com/unet-go/unet/mux"
)

// Bytes writes a limit in bytes as a policy file would have it.
func Bytes(n int64) string {
	if n == Unlimited {
		return "unlimited"
	}
	return mux.Size(n).String()
}

// Count writes a limit of things.
func Count(n int64) string {
	if n == Unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}
