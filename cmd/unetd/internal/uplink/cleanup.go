package uplink

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/mux"
)

// Cleanup removes what unetds of this network namespace that were killed have
// left in the kernel, and names it.
func Cleanup(bpffs string, force bool, report func(what string)) error {
	var st unix.Statfs_t
	if err := unix.Statfs(bpffs, &st); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("--bpffs %s: %w", bpffs, err)
	} else if err != nil || st.Type != unix.BPF_FS_MAGIC {
		return nil // nobody could have kept anything there
	}
	return mux.Cleanup(bpffs, force, report)
}
