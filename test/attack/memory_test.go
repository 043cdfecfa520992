//go:build linux

package attack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
)

// attempt is a system call that an attacker has tried.
type attempt struct {
	What  string
	Errno string // empty: it worked
}

// addAttempt notes a system call and its error.
func addAttempt(list *[]attempt, what string, err error) {
	a := attempt{What: what}
	var errno unix.Errno
	switch {
	case errors.As(err, &errno):
		a.Errno = unix.ErrnoName(errno)
	case errors.Is(err, os.ErrPermission):
		a.Errno = "EPERM"
	case err != nil:
		a.Errno = err.Error()
	}
	*list = append(*list, a)
}

// allRefused checks that no attempt has worked, except for those that may.
func (s *caseRun) allRefused(attempts []attempt, mayWork ...string) {
	s.Helper()
	refusals := map[string]int{}
	for _, a := range attempts {
		switch {
		case a.Errno != "":
			refusals[a.Errno]++
		case slices.Contains(mayWork, a.What):
			refusals["harmless"]++
		default:
			s.Errorf("%s: it worked", a.What)
			s.row.note("IT WORKED: %s", a.What)
		}
	}
	s.row.note("%d attempts: %s", len(attempts), countsText(refusals))
}

// changeSegment tries all changes to a segment that its descriptor might allow.
var changeSegment = newCommand("changeSegment", func(a *agent, arg endpointArg) (list []attempt, err error) {
	g := a.endpoints[arg.Endpoint]
	fd, size := int(g.grant.Segment.Fd()), g.grant.Geometry.SegmentSize()
	addAttempt(&list, "ftruncate to 0", unix.Ftruncate(fd, 0))
	addAttempt(&list, "ftruncate to half", unix.Ftruncate(fd, size/2))
	addAttempt(&list, "ftruncate to twice its size", unix.Ftruncate(fd, 2*size))
	addAttempt(&list, "fallocate behind the end", unix.Fallocate(fd, 0, size, 1<<20))
	addAttempt(&list, "fallocate collapse", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 1<<20))
	addAttempt(&list, "fallocate insert", unix.Fallocate(fd, unix.FALLOC_FL_INSERT_RANGE, 0, 1<<20))
	_, err = unix.Pwrite(fd, []byte("x"), size)
	addAttempt(&list, "write behind the end", err)
	for _, seal := range []int{unix.F_SEAL_SHRINK, unix.F_SEAL_GROW, unix.F_SEAL_WRITE, unix.F_SEAL_FUTURE_WRITE, unix.F_SEAL_SEAL, unix.F_SEAL_EXEC} {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
		addAttempt(&list, fmt.Sprintf("add seal %#x", seal), err)
	}
	// The seals apply to the file, so they also hold if it is opened again by its link.
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR|os.O_TRUNC, 0)
	addAttempt(&list, "open anew with O_TRUNC", err)
	if err == nil {
		again.Close()
	}
	addAttempt(&list, "execute", unix.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), []string{"x"}, nil))
	// A mapping beyond the end is granted; an access to it is SIGBUS. If the kernel
	// reads it in a system call, the error has to be EFAULT.
	if mem, err := unix.Mmap(fd, size, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		r, w, pipeErr := os.Pipe()
		if pipeErr != nil {
			return list, pipeErr
		}
		_, err := unix.Write(int(w.Fd()), mem)
		addAttempt(&list, "read behind the end", err)
		r.Close()
		w.Close()
		unix.Munmap(mem)
	}
	return list, nil
})

// punchHoles makes holes in a segment. The kernel permits that.
var punchHoles = newCommand("punchHoles", func(a *agent, arg endpointArg) (list []attempt, err error) {
	g := a.endpoints[arg.Endpoint]
	fd, size := int(g.grant.Segment.Fd()), g.grant.Geometry.SegmentSize()
	addAttempt(&list, "a hole in the middle", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, size/4, size/2))
	addAttempt(&list, "a hole as large as the segment", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size))
	addAttempt(&list, "zero range", unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 0, size))
	addAttempt(&list, "MADV_REMOVE", unix.Madvise(g.mem, unix.MADV_REMOVE))
	addAttempt(&list, "MADV_DONTNEED", unix.Madvise(g.mem, unix.MADV_DONTNEED))
	addAttempt(&list, "mprotect to nothing", unix.Mprotect(g.mem, unix.PROT_NONE))
	addAttempt(&list, "mprotect back", unix.Mprotect(g.mem, unix.PROT_READ|unix.PROT_WRITE))
	return list, nil
})

func memoryCases() []attackCase {
	return []attackCase{
		{"resize and reseal the segment", "ftruncate, fallocate, write, seals, opening it anew, executing it, touching what is behind its end", func(s *caseRun) {
			t := s.target(endpoint.Request{})
			s.allRefused(changeSegment.do(s, t.agentProcess, endpointArg{t.Endpoint}))
			t.wantAnswers(s)
		}},
		{"holes in the segment", "punched by fallocate and madvise, while host B sends 2,000 datagrams into it and its owner sends from it", func(s *caseRun) {
			t := s.target(endpoint.Request{})
			worked := 0
			for range 20 {
				t.sendTo(100)
				for _, a := range punchHoles.do(s, t.agentProcess, endpointArg{t.Endpoint}) {
					if a.Errno == "" {
						worked++
					}
				}
				v := s.permitted() // what leaves is what the kernel finds in the pages that it holds: perhaps nothing
				frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, v.mark())))
				sendFrames.do(s, t.agentProcess, sendArg{t.Endpoint, []outFrame{{Frame: frame}}})
				drain.do(s, t.agentProcess, endpointArg{t.Endpoint})
			}
			s.row.note("%d of 140 calls worked: the segment is its owner's to spoil", worked)
		}},
	}
}

// keepArg says what an agent keeps of an endpoint after the end of its lease.
type keepArg struct {
	Endpoint int
	By       string
}

// keepAfterLease ends a lease and closes everything but one thing.
var keepAfterLease = newCommand("keepAfterLease", func(a *agent, arg keepArg) (nothing, error) {
	g := a.endpoints[arg.Endpoint]
	path := fmt.Sprintf("/proc/self/fd/%d", g.grant.Segment.Fd())
	var err error
	switch arg.By {
	case "both descriptors":
		return nothing{}, g.lease.Close()
	case "the XSK":
		return nothing{}, errors.Join(g.lease.Close(), g.unmapRings(), unix.Munmap(g.mem), g.grant.Segment.Close())
	case "the mapped rings":
		return nothing{}, errors.Join(g.lease.Close(), unix.Munmap(g.mem), g.grant.Close())
	case "the mapped segment":
		return nothing{}, errors.Join(g.lease.Close(), g.unmapRings(), g.grant.Close())
	case "the memfd":
		return nothing{}, errors.Join(g.lease.Close(), g.unmapRings(), unix.Munmap(g.mem), g.grant.XSK.Close())
	case "the memfd, opened anew to read":
		f, openErr := os.Open(path)
		a.hold(f)
		err = openErr
	case "the memfd, opened anew by O_PATH":
		fd, openErr := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		a.hold(os.NewFile(uintptr(fd), "path"))
		err = openErr
	case "a watch of inotify":
		fd, initErr := unix.InotifyInit1(unix.IN_CLOEXEC)
		a.hold(os.NewFile(uintptr(fd), "inotify"))
		_, watchErr := unix.InotifyAddWatch(fd, path, unix.IN_CLOSE)
		err = errors.Join(initErr, watchErr)
	case "a message in a unix socket":
		pair, pairErr := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if pairErr != nil {
			return nothing{}, pairErr
		}
		a.hold(os.NewFile(uintptr(pair[0]), "a"))
		a.hold(os.NewFile(uintptr(pair[1]), "b"))
		err = unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(g.fd, int(g.grant.Segment.Fd())), nil, 0)
	case ownSocket:
		cmd, startErr := startSharer(g.grant.XSK)
		if startErr == nil {
			a.hold(sharer{cmd})
		}
		err = startErr
	default:
		err = fmt.Errorf("BUG: keep by %q", arg.By)
	}
	return nothing{}, errors.Join(err, g.lease.Close(), g.close())
})

// sharer is a process that Close kills.
type sharer struct{ cmd *exec.Cmd }

func (s sharer) Close() error {
	s.cmd.Process.Kill()
	s.cmd.Wait() // it was killed
	return nil
}

func (a *agent) hold(c interface{ Close() error }) { a.held = append(a.held, c) }

// ownSocket keeps a segment in a way that only the kernel can count, against its owner's
// RLIMIT_MEMLOCK.
const ownSocket = "a socket of its own over the segment"

// kernelCounts reports whether RLIMIT_MEMLOCK can be as high here as that needs.
func kernelCounts(t testing.TB) bool {
	t.Helper()
	var limit unix.Rlimit
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit), unix.Capget(&header, &caps[0])); err != nil {
		t.Fatal(err)
	}
	return limit.Max >= attackerMemory || caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// keptThings are the ways to keep resources of a lease after its end.
var keptThings = []string{
	"both descriptors", "the XSK", "the mapped rings", "the memfd", "the mapped segment", "the memfd, opened anew to read",
	"the memfd, opened anew by O_PATH", "a watch of inotify", "a message in a unix socket", ownSocket,
}

func leftoverCases() (cases []attackCase) {
	cases = append(cases, attackCase{"after the lease's end", "the owner keeps both descriptors, sends 1,000 permitted frames, waits for datagrams of host B, and presents the XSK", func(s *caseRun) {
		t := s.target(endpoint.Request{})
		t.wantAnswers(s)
		keepAfterLease.do(s, t.agentProcess, keepArg{t.Endpoint, "both descriptors"})
		before := s.counters(s)
		v := s.forged()
		frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, v.mark())))
		for range 1000 {
			v.add(frame)
		}
		result := sendFrames.do(s, t.agentProcess, sendArg{t.Endpoint, v.frames})
		t.sendTo(1000)
		got := drain.do(s, t.agentProcess, endpointArg{t.Endpoint})
		if got.Frames != 0 {
			s.Errorf("it received %d frames", got.Frames)
		}
		if counts := unusual(since(before, s.counters(s))); counts != "" {
			s.Errorf("frames met the mux: %s", counts)
		}
		s.row.note("sending: %s; received: %d frames", result.Errno, got.Frames)
		again := talk.do(s, t.agentProcess, talkArg{Socket: s.unetd.Socket, Records: []record{{Text: presentRecord, Descriptors: []int{t.Endpoint}}}})
		s.wantEnded([]string{"present it again"}, []conversation{again})
	}})
	for _, by := range keptThings {
		cases = append(cases, attackCase{"hold on by " + by, "20 endpoints opened and closed one after another, of each of which that is kept: they count as long as they are held", func(s *caseRun) {
			s.keepOpened(by)
		}})
	}
	return append(cases, attackCase{"given back", "as many endpoints as the policy gives, all at once, after all that", func(s *caseRun) {
		if !testutil.Until(func() bool { return s.allEndpointsOpen() }) {
			s.Error("memory is counted that no process holds")
		}
	}})
}

// keepOpened opens endpoints, ends their leases, and keeps something of each. The
// policy's limits must hold for what is kept: either it is counted, or it holds no memory any
// more.
func (s *caseRun) keepOpened(by string) {
	const tries, segment = 20, 16 << 20
	a := startAgent(s, s.pair.A, attackerID)
	before := heldMemory(s)
	kept := 0
	for ; kept < tries; kept++ {
		req := endpoint.Request{Geometry: endpoint.Geometry{FrameCount: segment / endpoint.DefaultFrameSize}}
		g, err := openEndpoint.try(a, openArg{s.unetd.Socket, req})
		if errors.Is(err, endpoint.ErrBusy) {
			s.row.note("%d were held, then: %v", kept, err)
			break
		}
		if err != nil {
			s.Fatalf("open: %v", err)
		}
		if _, err := keepAfterLease.try(a, keepArg{g.Endpoint, by}); err != nil {
			s.row.note("not possible here: %v", err)
			return
		}
	}
	held, limit := 0, attackerMemory>>10
	counts := by != ownSocket || kernelCounts(s)
	over := kept == tries && counts && !testutil.Until(func() bool { held = heldMemory(s) - before; return held <= limit })
	full := heldMemory(s)
	a.kill()
	switch {
	case kept < tries:
	case !counts:
		s.row.note("%d MiB are held: the kernel counts what is registered against RLIMIT_MEMLOCK, whose hard limit is lower here and may not be raised", (full-before)>>10)
	case over && testutil.Until(func() bool { return full-heldMemory(s) > limit }): // the memory was the attacker's, not of other programs
		s.Errorf("%d KiB are held by %s; %d are allowed", held, by, limit)
		s.row.note("NOT COUNTED: %d KiB are held of %d allowed", held, limit)
	default:
		s.row.note("%d are not counted: nothing is left of their memory", kept)
	}
	if other := startAgent(s, s.pair.A, attackerID); !testutil.Until(func() bool {
		_, err := openEndpoint.try(other, openArg{s.unetd.Socket, endpoint.Request{}})
		return err == nil
	}) {
		s.Error("endpoints are still counted after they were given back")
	}
}

// heldMemory is the machine's shared memory or its permanently pinned pages, whichever is more,
// in KiB.
func heldMemory(t testing.TB) int {
	t.Helper()
	shared, err := memoryOf("/proc/meminfo", "Shmem")
	if err != nil {
		t.Fatal(err)
	}
	var pinned [2]int
	for i, field := range []string{"nr_foll_pin_acquired", "nr_foll_pin_released"} {
		if pinned[i], err = memoryOf("/proc/vmstat", field); err != nil {
			t.Fatal(err)
		}
	}
	return max(shared, (pinned[0]-pinned[1])*(os.Getpagesize()>>10))
}

// allEndpointsOpen reports whether an attacker may open as many endpoints as the policy gives
// beside the one that is always there.
func (s *caseRun) allEndpointsOpen() bool {
	a := startAgent(s, s.pair.A, attackerID)
	defer a.kill()
	for range attackerEndpoints - 1 {
		if _, err := openEndpoint.try(a, openArg{s.unetd.Socket, endpoint.Request{}}); err != nil {
			return false
		}
	}
	return true
}

// roleSharer makes a process of this binary one that binds a socket of its own over
// another's segment. A user who may make a user namespace has all capabilities in it,
// also those that an XSK needs.
const roleSharer = "sharer"

// sharedFD is where a sharer finds the granted XSK.
const sharedFD = 3

// startSharer starts one over a granted XSK. It holds the segment until it is
// killed. The error has the sharer's output.
func startSharer(xsk *os.File) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), agentVariable+"="+roleSharer)
	cmd.ExtraFiles = []*os.File{xsk}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("no user namespace: %w", err)
	}
	said := make([]byte, 1024)
	n, err := out.Read(said)
	if text := strings.TrimSpace(string(said[:n])); text != "bound" {
		cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("sharer: %s", text), err, cmd.Wait())
	}
	return cmd, nil
}

// runSharer binds, closes what it was given, and waits.
func runSharer(in io.Reader, out io.Writer) error {
	sock, err := bindShared(sharedFD)
	if err != nil {
		fmt.Fprintln(out, err)
		return err
	}
	defer sock.Close()
	if err := unix.Close(sharedFD); err != nil {
		return err
	}
	fmt.Fprintln(out, "bound")
	_, err = io.Copy(io.Discard, in)
	return err
}

// bindShared makes an XSK with rings of its own on lo of this namespace, over the
// UMEM of another.
func bindShared(umem int) (*os.File, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("lo: %w", err)
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket AF_XDP", err)
	}
	for _, option := range []int{unix.XDP_RX_RING, unix.XDP_TX_RING, unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, option, 64); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	err = unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_SHARED_UMEM, Ifindex: uint32(lo.Attrs().Index), SharedUmemFD: uint32(umem)})
	if err != nil {
		return nil, os.NewSyscallError("bind with XDP_SHARED_UMEM", err)
	}
	return os.NewFile(uintptr(fd), "shared"), nil
}
