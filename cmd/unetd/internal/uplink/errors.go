package uplink

import (
	"errors"
	"fmt"
	"os"

	"github.com/unet-go/unet/mux"
)

// explainOpen says what an operator can do about an error of mux.Open.
func explainOpen(interfaceName string, err error) error {
	for _, e := range []struct {
		is error
		do string
	}{
		{mux.ErrInUse, "stop the other unetd, or use another --interface"},
		{os.ErrPermission, "run unetd as root of the initial user namespace"}, // Check found the capabilities
		{mux.ErrForeignProgram, detachAdvice(interfaceName) + ", or use another --interface"},
		{mux.ErrNotEthernet, "use another --interface"},
		{mux.ErrVLANOffload, "turn it off (ethtool -K " + interfaceName + " rxvlan off), or use another --interface"},
	} {
		if errors.Is(err, e.is) {
			return fmt.Errorf("%w: %s", err, e.do)
		}
	}
	return err
}
