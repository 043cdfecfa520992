//go:build linux

package attack

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// processArg is the process to break into.
type processArg struct{ PID int }

// accessProcess tries to reach another process's descriptors and memory.
var accessProcess = newCommand("accessProcess", func(a *agent, arg processArg) (list []attempt, err error) {
	proc := filepath.Join("/proc", strconv.Itoa(arg.PID))
	_, err = os.ReadDir(proc + "/fd")
	addAttempt(&list, "list descriptors", err)
	for fd := range 64 {
		for _, flags := range []int{unix.O_RDWR, unix.O_RDONLY, unix.O_PATH} {
			got, err := unix.Open(fmt.Sprintf("%s/fd/%d", proc, fd), flags|unix.O_CLOEXEC, 0)
			addAttempt(&list, fmt.Sprintf("open descriptor %d", fd), err)
			if err == nil {
				unix.Close(got)
			}
		}
	}
	for _, file := range []string{"maps", "mem", "environ", "map_files", "ns/net", "root", "cwd", "fdinfo", "auxv", "syscall"} {
		f, err := os.Open(filepath.Join(proc, file))
		if err == nil {
			if _, err = f.Read(make([]byte, 1)); err == nil || file == "map_files" || file == "fdinfo" {
				_, err = f.Readdirnames(1)
			}
			f.Close()
		}
		addAttempt(&list, "read "+file, err)
	}
	pidfd, err := unix.PidfdOpen(arg.PID, 0)
	if err != nil {
		return list, os.NewSyscallError("pidfd_open", err) // everybody may
	}
	defer unix.Close(pidfd)
	for fd := range 64 {
		_, err := unix.PidfdGetfd(pidfd, fd, 0)
		addAttempt(&list, fmt.Sprintf("pidfd_getfd %d", fd), err)
	}
	addAttempt(&list, "setns by pidfd", unix.Setns(pidfd, unix.CLONE_NEWNET))
	addAttempt(&list, "PTRACE_ATTACH", unix.PtraceAttach(arg.PID))
	addAttempt(&list, "PTRACE_SEIZE", unix.PtraceSeize(arg.PID))
	buf := make([]byte, 8)
	_, err = unix.ProcessVMReadv(arg.PID, []unix.Iovec{{Base: &buf[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	addAttempt(&list, "process_vm_readv", err)
	_, err = unix.ProcessVMWritev(arg.PID, []unix.Iovec{{Base: &buf[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	addAttempt(&list, "process_vm_writev", err)
	for _, signal := range []unix.Signal{0, unix.SIGHUP, unix.SIGTERM, unix.SIGSTOP, unix.SIGKILL, unix.SIGIO} {
		addAttempt(&list, "kill by "+unix.SignalName(signal), unix.Kill(arg.PID, signal))
	}
	return list, nil
})

// accessBPF tries to reach BPF objects: by their identifiers, and by the pins in a BPF
// file system whose directory is the agent's descriptor 3.
var accessBPF = newCommand("accessBPF", func(a *agent, _ nothing) (list []attempt, err error) {
	byID := map[string]uintptr{"program": unix.BPF_PROG_GET_FD_BY_ID, "map": unix.BPF_MAP_GET_FD_BY_ID, "link": unix.BPF_LINK_GET_FD_BY_ID}
	next := map[string]uintptr{"program": unix.BPF_PROG_GET_NEXT_ID, "map": unix.BPF_MAP_GET_NEXT_ID, "link": unix.BPF_LINK_GET_NEXT_ID}
	for what := range byID {
		_, err := bpf(next[what], &[16]uint64{})
		addAttempt(&list, "walk the list of "+what+"s", err)
		for id := range uint64(500) {
			_, err := bpf(byID[what], &[16]uint64{id})
			addAttempt(&list, fmt.Sprintf("%s %d", what, id), err)
		}
	}
	_, err = bpf(unix.BPF_MAP_CREATE, &[16]uint64{unix.BPF_MAP_TYPE_HASH | 4<<32, 4 | 1<<32})
	addAttempt(&list, "make a map", err)
	const root = "/proc/self/fd/3"
	_, err = os.ReadDir(root + "/unet")
	addAttempt(&list, "list the pins", err)
	for _, file := range []string{"/maps.debug", "/progs.debug"} {
		_, err := os.ReadFile(root + file)
		addAttempt(&list, "read "+file, err)
	}
	for _, dir := range []string{root, root + "/unet"} {
		addAttempt(&list, "make a directory in "+dir, os.Mkdir(dir+"/mine", 0o777))
		addAttempt(&list, "rename in "+dir, os.Rename(dir+"/unet", dir+"/theirs"))
		addAttempt(&list, "remove "+dir, os.Remove(dir+"/unet"))
		path := append([]byte(dir+"/tags"), 0)
		_, err = bpf(unix.BPF_OBJ_GET, &[16]uint64{pathAddress(path)})
		addAttempt(&list, "BPF_OBJ_GET of "+dir+"/tags", err)
	}
	return list, nil
})

func intruderCases() []attackCase {
	return []attackCase{
		{"the neighbour's process", "its descriptors by /proc and pidfd_getfd, its memory, ptrace, its namespaces, signals", func(s *caseRun) {
			a := startAgent(s, s.pair.A, attackerID)
			s.allRefused(accessProcess.do(s, a, processArg{s.neighbour.pid()}))
		}},
		{"unetd's process", "the same, of unetd", func(s *caseRun) {
			a := startAgent(s, s.pair.A, attackerID)
			s.allRefused(accessProcess.do(s, a, processArg{s.unetd.PID()}))
		}},
		{"BPF objects", "maps, programs and links by identifier; the pins of unetd, in a file system that everybody may enter", func(s *caseRun) {
			a := startAgent(s, s.pair.A, attackerID, s.pins)
			s.allRefused(accessBPF.do(s, a, nothing{}))
		}},
		{"what crosses with a grant", "all descriptors of a process that has been granted an endpoint: an XSK and a memfd, and nothing else of unetd's", func(s *caseRun) {
			a := startAgent(s, s.pair.A, attackerID)
			before := inventory.do(s, a, nothing{})
			openEndpoint.do(s, a, openArg{s.unetd.Socket, endpoint.Request{}})
			after := inventory.do(s, a, nothing{})
			for kind, n := range after {
				switch extra := n - before[kind]; {
				case kind == "bpf" && n > 0:
					s.Errorf("it has %d BPF objects", n)
				case kind == "memfd" && extra != 1:
					s.Errorf("it has %d more memfds", extra)
				}
			}
			s.row.note("before: %s; after: %s", countsText(before), countsText(after))
		}},
	}
}

// inventory is an agent's own descriptors, by kind.
var inventory = newCommand("inventory", func(a *agent, _ nothing) (map[string]int, error) { return descriptorKinds(os.Getpid()) })

// occupyPins makes what unetd is about to make in a BPF file system that everybody may
// write to, whose directory is the agent's descriptor 3.
var occupyPins = newCommand("occupyPins", func(a *agent, how string) (nothing, error) {
	const name = "/proc/self/fd/3/unet"
	if how == "link" {
		return nothing{}, os.Symlink("/tmp", name)
	}
	return nothing{}, os.Mkdir(name, 0o777)
})

// TestPinFolderOfAnotherUserIsRefused: if every user may write to the BPF file system, another user can have
// made unetd's folder before unetd. unetd must not pin anything there.
func TestPinFolderOfAnotherUserIsRefused(t *testing.T) {
	for _, how := range []string{"folder", "link"} {
		t.Run(how, func(t *testing.T) {
			row := results.add(t, "a "+how+" in place of unetd's pins", "made by the attacker, in a BPF file system of mode 1777, before unetd starts")
			pair := netlab.RequirePair(t, netlab.Config{})
			dir, err := netlab.OpenBPFFS("1777")
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			occupyPins.do(t, startAgent(t, pair.A, attackerID, dir), how)
			socket := filepath.Join(t.TempDir(), "unetd.sock")
			p := unetd.Start(t, pair.A, netlab.Bound(), unetd.Command(t, "unetd"),
				"serve", "--interface", pair.A.Interface, "--socket", socket, "--bpffs", netlab.PathTo(dir))
			if err := p.End(t); err == nil || !strings.Contains(p.Output(), "--bpffs") {
				t.Errorf("unetd ended with %v", err)
			}
			lines := strings.Split(p.Output(), "\n")
			row.note("%s", lines[len(lines)-1])
			unetd.Untouched(t, pair.A)
		})
	}
}

// refusedClaim is a tag that an attacker claims, and why the claim has to be refused.
type refusedClaim struct {
	Tag  endpoint.Tag
	Want error
}

func policyCases() []attackCase {
	return []attackCase{
		{"tags of others", "claims of the neighbour's ports, blocks around them, addresses and message tags, of the kernel's ports and addresses, of ports below 1024", func(s *caseRun) {
			t := s.target(endpoint.Request{})
			udp, tcp := endpoint.UDPTag, endpoint.TCPTag
			at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
			neighbour := at(hostA, neighbourPort)
			all := []refusedClaim{
				{udp(neighbour), endpoint.ErrTagHeld},
				{udp(neighbour).AsBlock(), endpoint.ErrTagHeld},
				{tcp(neighbour), endpoint.ErrTagHeld},
				{tcp(neighbour).AsBlock(), endpoint.ErrTagHeld},
				{udp(at(hostA6, neighbourPort)), endpoint.ErrTagHeld},
				{udp(at(hostA, neighbourBlock)), endpoint.ErrTagHeld},
				{udp(at(hostA, neighbourBlock+63)), endpoint.ErrTagHeld},
				{udp(at(hostA, neighbourBlock)).AsBlock(), endpoint.ErrTagHeld},
				{udp(at(hostA, attackerPort)), endpoint.ErrTagHeld}, // of the same user's other process
				{udp(at(hostA, kernelPort)), endpoint.ErrTagHeld},
				{tcp(at(hostA, kernelPort)), endpoint.ErrTagHeld},
				{tcp(at(hostA, kernelPort)).AsBlock(), endpoint.ErrTagHeld},
				{udp(at(hostA, 53)), endpoint.ErrTagDenied},
				{tcp(at(hostA, 22)), endpoint.ErrTagDenied},
				{udp(at(hostA, 960)).AsBlock(), endpoint.ErrTagDenied},
				{udp(at(neighbourAddr, 7000)), endpoint.ErrTagDenied},
				{udp(at(hostB, 7000)), endpoint.ErrTagDenied},
				{udp(at(netip.MustParseAddr("224.0.0.1"), 7000)), endpoint.ErrTagDenied},
				{udp(at(netip.MustParseAddr("127.0.0.1"), 7000)), endpoint.ErrTagDenied},
				{endpoint.AddrTag(hostA), endpoint.ErrTagDenied},
				{endpoint.AddrTag(hostA6), endpoint.ErrTagDenied},
				{endpoint.AddrTag(neighbourAddr), endpoint.ErrTagDenied},
				{endpoint.AddrTag(neighbourAddr6), endpoint.ErrTagDenied},
				{endpoint.AddrTag(hostB), endpoint.ErrTagDenied},
				{endpoint.AddrTag(netip.MustParseAddr("255.255.255.255")), endpoint.ErrTagDenied},
				{endpoint.AddrTag(attackerAddr), endpoint.ErrTagHeld},
				{endpoint.MessageTag(neighbourTag), endpoint.ErrTagDenied},
				{endpoint.MessageTag(peerTag), endpoint.ErrTagDenied},
				{endpoint.MessageTag(attackerTag), endpoint.ErrTagHeld},
			}
			outcomes := map[string]int{}
			for _, g := range all {
				_, err := claim.try(t.agentProcess, claimArg{t.Endpoint, g.Tag})
				if !errors.Is(err, g.Want) {
					s.Errorf("claim of %v: %v, want %v", g.Tag, err, g.Want)
				}
				if err != nil {
					outcomes[g.Want.Error()]++
				}
			}
			s.row.note("%d claims: %s", len(all), countsText(outcomes))
			t.wantAnswers(s)
		}},
		{"more than the policy gives", "a queue of the uplink, a segment of 1 GiB, more memory in all, list and counters, an endpoint for a user whom no rule names", func(s *caseRun) {
			a := startAgent(s, s.pair.A, attackerID)
			open := func(what string, req endpoint.Request, want ...error) {
				_, err := openEndpoint.try(a, openArg{s.unetd.Socket, req})
				for _, w := range want {
					if errors.Is(err, w) {
						s.row.note("%s: %v", what, err)
						return
					}
				}
				s.Errorf("%s: %v, want %v", what, err, want)
			}
			open("a queue", endpoint.Request{Attach: endpoint.AttachQueue}, os.ErrPermission)
			open("1 GiB", endpoint.Request{Geometry: endpoint.Geometry{FrameSize: 4096, FrameCount: 1 << 18}}, endpoint.ErrBusy, os.ErrPermission)
			open("2^32 bytes", endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 1 << 31}}, endpoint.ErrGeometry)
			half := endpoint.Request{Geometry: endpoint.Geometry{FrameCount: attackerMemory / 2 / 2048}}
			if _, err := openEndpoint.try(a, openArg{s.unetd.Socket, half}); err != nil {
				s.Errorf("half of the memory: %v", err)
			}
			open("the other half and what others have", half, endpoint.ErrBusy)
			if _, err := readOperatorData.try(a, s.unetd.Socket); !errors.Is(err, os.ErrPermission) {
				s.Errorf("list and counters: %v, want permission", err)
			}
			stranger := startAgent(s, s.pair.A, strangerID)
			if _, err := openEndpoint.try(stranger, openArg{s.unetd.Socket, endpoint.Request{}}); !errors.Is(err, os.ErrPermission) {
				s.Errorf("an endpoint for a stranger: %v, want permission", err)
			}
		}},
	}
}

// claimArg is a tag to claim.
type claimArg struct {
	Endpoint int
	Tag      endpoint.Tag
}

var claim = newCommand("claim", func(a *agent, arg claimArg) (endpoint.Tag, error) {
	ctx, cancel := timeout()
	defer cancel()
	return a.endpoints[arg.Endpoint].lease.Claim(ctx, arg.Tag)
})

// readOperatorData requests from unetd what only operators may read.
var readOperatorData = newCommand("readOperatorData", func(a *agent, socket string) (nothing, error) {
	ctx, cancel := timeout()
	defer cancel()
	if _, err := (control.Operator{Socket: socket}).List(ctx); err == nil {
		return nothing{}, errors.New("the list was given")
	}
	_, err := control.Operator{Socket: socket}.Counters(ctx)
	return nothing{}, err
})

const presentRecord = `{"v":1,"id":1,"op":"present"}`

func presentCases() []attackCase {
	return []attackCase{
		{"present what is not one's own", "the neighbour's XSK, which its process has handed over; an own live one, once and twice; the memfd, a UDP socket, /dev/null; none and two", func(s *caseRun) {
			t := s.target(endpoint.Request{})
			victim := startAgent(s, s.pair.A, neighbourID)
			theirs := openEndpoint.do(s, victim, openArg{s.unetd.Socket, endpoint.Request{}})
			name := fmt.Sprintf("unet-attack-%d", t.pid())
			listenDescriptors.do(s, t.agentProcess, name)
			sendDescriptor.do(s, victim, sendDescriptorArg{theirs.Endpoint, name})
			handedOver := receiveDescriptor.do(s, t.agentProcess, nothing{})
			var what []string
			var outcomes []conversation
			for _, c := range []struct {
				what  string
				files []int
			}{
				{"the neighbour's XSK", []int{handedOver}},
				{"an own live XSK", []int{t.Endpoint}},
				{"an own live XSK again", []int{t.Endpoint}},
				{"an own live XSK twice at once", []int{t.Endpoint, t.Endpoint}},
				{"an own one and the neighbour's", []int{t.Endpoint, handedOver}},
				{"a UDP socket", []int{udpSocket}},
				{"a memfd", []int{memfd}},
				{"/dev/null", []int{anyFile}},
				{"nothing", nil},
			} {
				r := record{Text: presentRecord, Descriptors: c.files}
				outcome := talk.do(s, t.agentProcess, talkArg{Socket: s.unetd.Socket, Records: []record{r}})
				what, outcomes = append(what, c.what), append(outcomes, outcome)
			}
			s.wantEnded(what, outcomes)
			if !s.leased(theirs.ID) || !s.leased(t.ID) {
				s.Error("presenting the descriptors has ended a lease")
			}
			t.wantAnswers(s)

			// An XSK that was handed over cannot be presented after its owner's death either.
			victim.kill()
			if !testutil.Until(func() bool { return !s.leased(theirs.ID) }) {
				s.Error("the victim's lease has not ended after its death")
			}
			outcome := talk.do(s, t.agentProcess, talkArg{Socket: s.unetd.Socket, Records: []record{{Text: presentRecord, Descriptors: []int{handedOver}}}})
			s.wantEnded([]string{"a dead one's XSK"}, []conversation{outcome})
		}},
	}
}
