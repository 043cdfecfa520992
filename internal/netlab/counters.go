package netlab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Counted is a counter of the host's kernel by its name in nstat(8): the protocol
// and the name in /proc/net/snmp and /proc/net/netstat ("UdpInCsumErrors"), or the
// name in /proc/net/snmp6 ("Udp6InCsumErrors").
func (h *Host) Counted(name string) (n uint64, err error) {
	err = h.Do(func() error {
		for _, file := range []string{"snmp", "netstat"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			lines := strings.Split(string(text), "\n")
			for i := 0; i+1 < len(lines); i += 2 { // names, then values
				names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
				for k := 1; k < len(names); k++ {
					if strings.TrimSuffix(names[0], ":")+names[k] == name {
						n, err = strconv.ParseUint(values[k], 10, 64)
						return err
					}
				}
			}
		}
		text, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil && !os.IsNotExist(err) { // a kernel without IPv6
			return err
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == name {
				n, err = strconv.ParseUint(f[1], 10, 64)
				return err
			}
		}
		return fmt.Errorf("the kernel does not count %s", name)
	})
	return n, err
}
