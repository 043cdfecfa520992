package mux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/unet-go/unet/endpoint"
)

// keptPorts says of each block whether it has ports that an administrator has
// kept out of automatic choice, or for privileged programs
// (Documentation/networking/ip-sysctl.rst).
type keptPorts [allPorts / endpoint.BlockPorts]bool

func (k *keptPorts) in(block endpoint.Tag) bool { return k[block.Port/endpoint.BlockPorts] }

func (k *keptPorts) add(first, last int) {
	for port := first; port <= last; port++ {
		k[port/endpoint.BlockPorts] = true
	}
}

// readKeptPorts asks the calling thread's namespace. The settings are those of
// IPv6 too.
func readKeptPorts() (*keptPorts, error) {
	const folder = "/proc/sys/net/ipv4/"
	reserved, err := readSetting(folder + "ip_local_reserved_ports")
	if err != nil {
		return nil, err
	}
	start, err := readSetting(folder + "ip_unprivileged_port_start")
	if err != nil {
		return nil, err
	}
	unprivileged, err := strconv.Atoi(start)
	if err != nil {
		return nil, fmt.Errorf("ip_unprivileged_port_start: %w", err)
	}
	kept := &keptPorts{}
	kept.add(0, unprivileged-1)
	return kept, kept.addList(reserved)
}

// addList adds ports and ranges as the kernel writes them: 8080,40000-40010.
func (k *keptPorts) addList(list string) error {
	for item := range strings.FieldsFuncSeq(list, func(c rune) bool { return c == ',' }) {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, errTo := strconv.ParseUint(last, 10, 16)
		if err = errors.Join(err, errTo); err != nil {
			return fmt.Errorf("ip_local_reserved_ports: %w", err)
		}
		k.add(int(from), int(to))
	}
	return nil
}

// readSetting reads a setting of the kernel's. It comes in one piece, or it is
// cut off, so there is room for the longest list of ports: every other one.
func readSetting(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, allPorts/2*len("65535,"))
	n, err := f.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimSpace(string(b[:n])), nil
}
