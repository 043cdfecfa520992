package uplink

import (
	"encoding/binary"
	"net"
	"strings"
	"syscall"
)

// Attributes of a link that say how XDP programs are attached to it, from
// linux/if_link.h.
const (
	iflaXDP           = 43
	iflaXDPDriverProg = 5
	iflaXDPSKBProg    = 6
	iflaXDPHWProg     = 7
	nlaTypeMask       = 1<<14 - 1
)

// detachAdvice says how to take a foreign program off an interface. The plain
// "xdp off" is about the driver's only where the driver can run programs, so the
// way that the program is attached must be named.
func detachAdvice(interfaceName string) string {
	var commands []string
	for _, mode := range attachedModes(interfaceName) {
		commands = append(commands, "ip link set dev "+interfaceName+" "+mode+" off")
	}
	if commands == nil { // gone meanwhile
		return "try again"
	}
	return "detach it (" + strings.Join(commands, " and ") + ", or end the program that holds its link)"
}

// attachedModes are the ways in which programs are attached to an interface, as
// ip-link(8) calls them; none if that cannot be found out.
func attachedModes(interfaceName string) []string {
	link, err := net.InterfaceByName(interfaceName)
	if err != nil {
		return nil
	}
	dump, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return nil
	}
	messages, err := syscall.ParseNetlinkMessage(dump)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if m.Header.Type != syscall.RTM_NEWLINK || len(m.Data) < syscall.SizeofIfInfomsg ||
			int(binary.NativeEndian.Uint32(m.Data[4:])) != link.Index {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil
		}
		for _, a := range attrs {
			if a.Attr.Type&nlaTypeMask == iflaXDP {
				return xdpModes(a.Value)
			}
		}
	}
	return nil
}

// xdpModes reads the nested attributes of IFLA_XDP.
func xdpModes(nested []byte) (modes []string) {
	for len(nested) >= syscall.SizeofRtAttr {
		size, kind := int(binary.NativeEndian.Uint16(nested)), binary.NativeEndian.Uint16(nested[2:])&nlaTypeMask
		if size < syscall.SizeofRtAttr || size > len(nested) {
			return modes
		}
		switch kind {
		case iflaXDPDriverProg:
			modes = append(modes, "xdpdrv")
		case iflaXDPSKBProg:
			modes = append(modes, "xdpgeneric")
		case iflaXDPHWProg:
			modes = append(modes, "xdpoffload")
		}
		nested = nested[min(len(nested), (size+3)&^3):]
	}
	return modes
}
