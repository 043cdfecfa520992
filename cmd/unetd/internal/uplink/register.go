package uplink

import (
	"io"

	"github.com/unet-go/unet/internal/xsk"
)

// RegisterMain is the life of the process that registers one segment in its
// owner's name. Config.Register leads to it.
func RegisterMain(args []string, stderr io.Writer) (exitCode int) {
	return xsk.RegisterMain(args, stderr)
}
