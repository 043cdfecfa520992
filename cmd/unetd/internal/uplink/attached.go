package uplink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/unet-go/unet/mux"
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

// attached is one XDP program of an interface.
type attached struct {
	mode string // how it is attached, as ip-link(8) calls it
	id   uint32 // of the program
}

// detachAdvice says how to take a foreign program off an interface. One that a BPF link
// holds there is refused to netlink: the link has to be detached, or whoever holds it
// has to end. Of others the way that they are attached must be named: the plain "xdp
// off" is about the driver's only where the driver can run programs.
func detachAdvice(interfaceName string) string {
	index, programs := attachedTo(interfaceName)
	var advice []string
	for _, p := range programs {
		links, err := mux.XDPLinks(p.id, index)
		if err != nil || len(links) == 0 {
			advice = append(advice, "ip link set dev "+interfaceName+" "+p.mode+" off")
		}
		for _, id := range links {
			advice = append(advice, fmt.Sprintf("bpftool link detach id %d%s", id, orStop(id)))
		}
	}
	if advice == nil { // gone meanwhile
		return "try again"
	}
	return "detach it (" + strings.Join(advice, " and ") + ")"
}

// orStop names the processes that hold a link, as far as this one may see them.
func orStop(link uint32) string {
	files, err := filepath.Glob("/proc/[0-9]*/fdinfo/*")
	if err != nil {
		return ""
	}
	want := []byte(fmt.Sprintf("\nlink_id:\t%d\n", link)) // proc_pid_fdinfo(5)
	var holders []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, want) {
			continue
		}
		process := filepath.Dir(filepath.Dir(file))
		name, _ := os.ReadFile(process + "/comm") // without it the number will do
		if h := "pid " + filepath.Base(process) + " " + strings.TrimSpace(string(name)); !slices.Contains(holders, h) {
			holders = append(holders, h)
		}
	}
	if holders == nil {
		return ", or end what holds the link, a process or a pin"
	}
	return ", or stop the process that holds the link: " + strings.Join(holders, ", ")
}

// attachedTo are the number of an interface and its programs; none if that cannot be
// found out.
func attachedTo(interfaceName string) (index int, programs []attached) {
	link, err := net.InterfaceByName(interfaceName)
	if err != nil {
		return 0, nil
	}
	dump, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return 0, nil
	}
	messages, err := syscall.ParseNetlinkMessage(dump)
	if err != nil {
		return 0, nil
	}
	for _, m := range messages {
		if m.Header.Type != syscall.RTM_NEWLINK || len(m.Data) < syscall.SizeofIfInfomsg ||
			int(binary.NativeEndian.Uint32(m.Data[4:])) != link.Index {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return 0, nil
		}
		for _, a := range attrs {
			if a.Attr.Type&nlaTypeMask == iflaXDP {
				return link.Index, xdpPrograms(a.Value)
			}
		}
	}
	return 0, nil
}

// xdpPrograms reads the nested attributes of IFLA_XDP.
func xdpPrograms(nested []byte) (programs []attached) {
	modes := map[uint16]string{iflaXDPDriverProg: "xdpdrv", iflaXDPSKBProg: "xdpgeneric", iflaXDPHWProg: "xdpoffload"}
	for len(nested) >= syscall.SizeofRtAttr {
		size, kind := int(binary.NativeEndian.Uint16(nested)), binary.NativeEndian.Uint16(nested[2:])&nlaTypeMask
		if size < syscall.SizeofRtAttr || size > len(nested) {
			return programs
		}
		if mode, ok := modes[kind]; ok && size >= syscall.SizeofRtAttr+4 {
			programs = append(programs, attached{mode, binary.NativeEndian.Uint32(nested[4:])})
		}
		nested = nested[min(len(nested), (size+3)&^3):]
	}
	return programs
}
