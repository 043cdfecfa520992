//go:build linux

package mux_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// Tests that kill the process of a mux run it as a child: this program again, which executes orders
// from a socket.

const childVariable = "UNET_MUX_TEST_CHILD"

// TestMain runs more tests at a time than there are processors: mostly they wait for the kernel. Those
// that check or change what the whole process has (descriptors, limits, hooks in package mux) are not
// parallel, and so run before all others.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := serveChild(); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	mux.ShareKernelTypes()
	os.Exit(m.Run())
}

// order is an order to a child, and answer its result.
type order struct {
	Do        string
	Interface string           `json:",omitempty"`
	Mode      mux.Mode         `json:",omitempty"`
	Pin       string           `json:",omitempty"`
	Grace     time.Duration    `json:",omitempty"`
	Request   endpoint.Request `json:",omitzero"`
	ID        uint64           `json:",omitempty"`
	Tag       *endpoint.Tag    `json:",omitempty"`
}

type answer struct {
	Error     string          `json:",omitempty"`
	Grant     *endpoint.Grant `json:",omitempty"`
	Endpoints []endpoint.Info `json:",omitempty"`
	Tag       *endpoint.Tag   `json:",omitempty"`
}

// serveChild is the main function of a child.
func serveChild() error {
	f := os.NewFile(3, "orders")
	conn, err := net.FileConn(f)
	if err != nil {
		return err
	}
	f.Close()
	c := conn.(*net.UnixConn)
	s := childServer{leases: map[uint64]*mux.Lease{}}
	b := make([]byte, 1<<16)
	oob := make([]byte, 1024)
	for {
		n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
		if err != nil || n == 0 {
			return err
		}
		var o order
		if err := json.Unmarshal(b[:n], &o); err != nil {
			return err
		}
		fds, err := receivedFiles(oob[:oobn])
		if err != nil {
			return err
		}
		var a answer
		if err := s.do(o, fds, &a); err != nil {
			a.Error = err.Error()
		}
		for _, f := range fds {
			f.Close()
		}
		var rights []byte
		if a.Grant != nil {
			rights = unix.UnixRights(int(a.Grant.XSK.Fd()), int(a.Grant.Segment.Fd()))
		}
		text, err := json.Marshal(a)
		if err != nil {
			return err
		}
		if _, _, err := c.WriteMsgUnix(text, rights, nil); err != nil {
			return err
		}
		if a.Grant != nil {
			if err := a.Grant.Close(); err != nil {
				return err
			}
		}
	}
}

func receivedFiles(oob []byte) (files []*os.File, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

type childServer struct {
	mux    *mux.Mux
	leases map[uint64]*mux.Lease
}

func (s *childServer) do(o order, files []*os.File, a *answer) (err error) {
	ctx := context.Background()
	switch o.Do {
	case "open":
		s.mux, err = mux.Open(mux.Config{Interface: o.Interface, Mode: o.Mode, Pin: o.Pin, Dir: filepath.Dir(o.Pin), Grace: o.Grace,
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		return err
	case "endpoint":
		var l *mux.Lease
		if a.Grant, l, err = s.mux.OpenEndpoint(ctx, o.Request); err == nil {
			s.leases[a.Grant.ID] = l
		}
		return err
	case "claim":
		t, err := s.leases[o.ID].Claim(ctx, *o.Tag)
		a.Tag = &t
		return err
	case "unclaim":
		return s.leases[o.ID].Unclaim(ctx, *o.Tag)
	case "present":
		info, l, err := s.mux.Present(ctx, mux.Owner{PID: os.Getppid()}, files[0], nil)
		if err == nil {
			s.leases[info.ID] = l
			a.Endpoints = []endpoint.Info{info}
		}
		return err
	case "list":
		a.Endpoints = s.mux.Endpoints()
		return nil
	case "end":
		return s.leases[o.ID].Close()
	case "close":
		return s.mux.Close()
	case "abandon":
		return s.mux.Abandon()
	}
	return errors.New("unknown order")
}

// child is a process that serves a mux on a host.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	conn *net.UnixConn
	out  *bytes.Buffer
}

func startChild(t *testing.T, h *netlab.Host) *child {
	t.Helper()
	c, err := newChild(t, h)
	testutil.Must(t, err)
	return c
}

// newChild is startChild for goroutines.
func newChild(t *testing.T, h *netlab.Host) (*child, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "orders"), os.NewFile(uintptr(fds[1]), "orders")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, err
	}
	c := &child{t: t, conn: conn.(*net.UnixConn), out: &bytes.Buffer{}}
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), childVariable+"=1")
	c.cmd.ExtraFiles = []*os.File{theirs}
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	c.cmd.SysProcAttr = netlab.Bound()
	if err := h.Start(c.cmd); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	t.Cleanup(c.kill)
	return c, nil
}

// try gives an order. died: the child ended without an answer. Goroutines may call it.
func (c *child) try(o order, files ...*os.File) (a answer, died bool) {
	text, err := json.Marshal(o)
	panicOn(err)
	var rights []byte
	for _, f := range files {
		rights = append(rights, unix.UnixRights(int(f.Fd()))...)
	}
	if _, _, err := c.conn.WriteMsgUnix(text, rights, nil); err != nil {
		return a, true
	}
	b := make([]byte, 1<<20)
	oob := make([]byte, 1024)
	n, oobn, _, _, err := c.conn.ReadMsgUnix(b, oob)
	if err != nil || n == 0 {
		return a, true
	}
	panicOn(json.Unmarshal(b[:n], &a))
	received, err := receivedFiles(oob[:oobn])
	panicOn(err)
	if a.Grant != nil {
		a.Grant.XSK, a.Grant.Segment = received[0], received[1]
	}
	return a, false
}

// do gives an order, which must succeed.
func (c *child) do(o order, files ...*os.File) answer {
	c.t.Helper()
	a, died := c.try(o, files...)
	if died || a.Error != "" {
		c.kill()
		c.t.Fatalf("%s: died %v, %s\n%s", o.Do, died, a.Error, c.out)
	}
	return a
}

// kill sends SIGKILL and waits for the end of the process.
func (c *child) kill() {
	if c.cmd.ProcessState != nil {
		return
	}
	c.cmd.Process.Kill() // an error means that it has ended already
	_ = c.cmd.Wait()     // its error is the signal
	c.conn.Close()
}

// killer sends SIGKILL to a process in the nth of its system calls that may have a lasting effect.
type killer struct {
	t    *testing.T
	plan *ebpf.Map // one killPlan
}

// killPlan is the input and output of the program.
type killPlan struct {
	Process uint64
	Seen    uint64 // calls so far
	At      uint64 // number of calls before the kill
}

// The system calls that are counted, and of bpf(2) the commands (linux/bpf.h): MAP_UPDATE_ELEM,
// MAP_DELETE_ELEM, OBJ_PIN, RAW_TRACEPOINT_OPEN, LINK_CREATE, LINK_DETACH.
var (
	killCalls    = []int32{unix.SYS_SENDTO, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT, unix.SYS_IOCTL, unix.SYS_UNSHARE, unix.SYS_BIND}
	killCommands = []int32{2, 3, 6, 17, 28, 34}
)

// firstArgument is where struct pt_regs has a system call's first argument.
var firstArgument = map[string]int32{"amd64": 112, "arm64": 0}

func newKiller(t *testing.T) *killer {
	t.Helper()
	at, known := firstArgument[runtime.GOARCH]
	if !known {
		t.Skipf("pt_regs of %s", runtime.GOARCH)
	}
	k := &killer{t: t}
	var err error
	k.plan, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 1})
	testutil.Must(t, err)
	t.Cleanup(func() { k.plan.Close() })
	var ns unix.Stat_t // the test may run in a container, where a process has several numbers
	testutil.Must(t, unix.Stat("/proc/self/ns/pid", &ns))

	ins := asm.Instructions{
		asm.LoadMem(asm.R7, asm.R1, 8, asm.DWord), // number of the call
		asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord), // its registers
	}
	for _, nr := range killCalls {
		ins = append(ins, asm.JEq.Imm(asm.R7, nr, "counted"))
	}
	ins = append(ins,
		asm.JNE.Imm(asm.R7, unix.SYS_BPF, "done"),
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -8),
		asm.Mov.Imm(asm.R2, 8),
		asm.Mov.Reg(asm.R3, asm.R6), asm.Add.Imm(asm.R3, at),
		asm.FnProbeReadKernel.Call(),
		asm.LoadMem(asm.R7, asm.RFP, -8, asm.DWord),
	)
	for _, command := range killCommands {
		ins = append(ins, asm.JEq.Imm(asm.R7, command, "counted"))
	}
	ins = append(ins,
		asm.Ja.Label("done"),
		asm.StoreImm(asm.RFP, -12, 0, asm.Word).WithSymbol("counted"),
		asm.LoadMapPtr(asm.R1, k.plan.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -12),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "done"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.LoadImm(asm.R1, int64(ns.Dev), asm.DWord),
		asm.LoadImm(asm.R2, int64(ns.Ino), asm.DWord),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 8),
		asm.FnGetNsCurrentPidTgid.Call(),
		asm.JNE.Imm(asm.R0, 0, "done"),
		asm.LoadMem(asm.R1, asm.RFP, -4, asm.Word), // the process
		asm.LoadMem(asm.R2, asm.R7, 0, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "done"),
		asm.Mov.Imm(asm.R3, 1),
		asm.AddAtomic.Mem(asm.R7, asm.R3, asm.DWord, 8),
		asm.LoadMem(asm.R3, asm.R7, 8, asm.DWord),
		asm.LoadMem(asm.R2, asm.R7, 16, asm.DWord),
		asm.JLE.Reg(asm.R3, asm.R2, "done"),
		asm.Mov.Imm(asm.R1, int32(unix.SIGKILL)),
		asm.FnSendSignal.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("done"),
		asm.Return(),
	)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL", Instructions: ins})
	testutil.Must(t, err)
	defer prog.Close()
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: prog})
	testutil.Must(t, err)
	t.Cleanup(func() { l.Close() })
	return k
}

// aim lets a child be killed in its nth call from now on, counted from 0.
func (k *killer) aim(c *child, n uint64) {
	k.t.Helper()
	testutil.Must(k.t, k.plan.Put(uint32(0), killPlan{Process: uint64(c.cmd.Process.Pid), At: n}))
}

// progress is how far a child came with all operations.
type progress struct {
	made       *app // an endpoint that it made and this process uses; nil: it was killed before
	endOrdered bool // it had the order to close the endpoint's lease
	closing    bool // it had the order to close the mux
	finished   bool // it was not killed
}

// runOperations lets a child open the mux, take over an endpoint if there is one, and do all operations.
func (l *pinLab) runOperations(c *child, before *app) (p progress) {
	l.t.Helper()
	died := false
	do := func(o order, files ...*os.File) (a answer) {
		l.t.Helper()
		if died {
			return a
		}
		if a, died = c.try(o, files...); a.Error != "" {
			l.t.Fatalf("%s: %s\n%s", o.Do, a.Error, c.out)
		}
		return a
	}
	do(order{Do: "open", Interface: l.A.Interface, Pin: l.pin})
	if before != nil {
		do(order{Do: "present"}, before.grant.XSK)
	}
	queue := do(order{Do: "endpoint", Request: endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small, Tags: killTags[:1]}})
	if queue.Grant != nil {
		testutil.Must(l.t, queue.Grant.Close()) // as if its process had died
	}
	mine := do(order{Do: "endpoint", Request: endpoint.Request{Geometry: small, Tags: killTags[1:]}})
	if mine.Grant == nil {
		return p
	}
	p.made = attach(l.t, mine.Grant)
	more := udpTag("10.0.0.1:7001")
	do(order{Do: "claim", ID: mine.Grant.ID, Tag: &more})
	do(order{Do: "unclaim", ID: mine.Grant.ID, Tag: &more})
	if p.endOrdered = !died && before == nil; p.endOrdered {
		do(order{Do: "end", ID: mine.Grant.ID})
	}
	if p.closing = !died; p.closing {
		do(order{Do: "close"})
	}
	p.finished = !died
	return p
}

// killEvery is n if every nth step is tested. There are about 300 steps, and the test of one takes half
// a second. Each run begins at another step.
var killEvery = flag.Uint64("kill-every", 12, "TestKilledAtAnyStep: kill at every nth step")

// The first is the tag of an endpoint on a queue.
var killTags = []endpoint.Tag{endpoint.MessageTag(8), udpTag("10.0.0.1:7000"), endpoint.MessageTag(7), udpTag("10.0.0.1:64000").AsBlock(), udpTag("239.1.2.3:5000")}

// The process of a mux is killed at any step: endpoints go on working, the next process takes over these
// endpoints and no others, and after its end no object is left.
func TestKilledAtAnyStep(t *testing.T) {
	t.Parallel()
	for _, takenOver := range []bool{false, true} {
		t.Run(fmt.Sprint("taken over ", takenOver), func(t *testing.T) {
			t.Parallel()
			netlab.RequireXDP(t)
			k := newKiller(t)
			l := newPinLab(t)
			empty := listObjects(t, l.A)
			b := kernelUDP(t, l.B, "10.0.0.2:0")
			first := rand.Uint64N(*killEvery)
			for n, finished := first, false; !finished && !t.Failed(); n += *killEvery {
				finished = l.killAt(k, n, takenOver, b, empty)
			}
		})
	}
}

// killAt kills a process at step n and checks the result. It reports whether there is no such step.
func (l *pinLab) killAt(k *killer, n uint64, takenOver bool, b *net.UDPConn, empty hostObjects) bool {
	l.t.Helper()
	defer func() {
		if l.t.Failed() {
			l.t.Logf("killed at step %d", n)
		}
	}()
	var before *app
	if takenOver {
		m := openPinned(l.t, l.A, mux.Config{Pin: l.pin})
		g, _, err := m.OpenEndpoint(l.t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{udpTag("10.0.0.1:7100")}})
		testutil.Must(l.t, err)
		before = attach(l.t, g)
		testutil.Must(l.t, m.Abandon())
	}
	c := startChild(l.t, l.A)
	k.aim(c, n)
	p := l.runOperations(c, before)
	c.kill()
	if before != nil && !p.closing {
		l.echo(b, before, "after the kill")
	}
	if p.made != nil && !p.endOrdered && !p.closing {
		l.echo(b, p.made, "after the kill")
	}

	m := openPinned(l.t, l.A, mux.Config{Pin: l.pin, Grace: time.Hour})
	var presented []*app
	for _, a := range []*app{before, p.made} {
		if a == nil {
			continue
		}
		_, lease, err := m.Present(l.t.Context(), me, a.grant.XSK, nil)
		ended := p.closing || p.endOrdered && a == p.made
		if err != nil && !(ended && errors.Is(err, endpoint.ErrNotPresentable)) {
			l.t.Fatalf("present endpoint %d: %v", a.grant.ID, err)
		}
		if err == nil {
			a.lease = lease
			presented = append(presented, a)
			if !ended {
				l.echo(b, a, "taken over")
			}
		}
	}
	testutil.Eventually(l.t, "endpoints and ports without an owner are gone", func() bool {
		return len(m.Endpoints()) == len(presented) && len(listObjects(l.t, l.A).links) == 2+len(presented)
	})
	testutil.Must(l.t, m.CheckTagCounts())
	for _, a := range presented {
		testutil.Must(l.t, a.lease.Close())
	}
	testutil.Must(l.t, m.CheckTagCounts())
	for _, a := range []*app{before, p.made} {
		if a != nil {
			a.close()
		}
	}
	g, lease, err := m.OpenEndpoint(l.t.Context(), endpoint.Request{Geometry: small, Tags: append(killTags, udpTag("10.0.0.1:7100"), udpTag("10.0.0.1:7001"))})
	testutil.Must(l.t, err)
	testutil.Must(l.t, errors.Join(lease.Close(), g.Close(), m.Close()))
	if left := pinnedIn(l.t, l.pin); len(left) != 0 {
		l.t.Errorf("pinned: %v", left)
	}
	if now := listObjects(l.t, l.A); !now.sameDevices(empty) {
		l.t.Errorf("left behind: %+v, before: %+v", now, empty)
	}
	if !offload(l.t, l.A, "rxvlan") {
		l.t.Error("receive VLAN offload stays off")
	}
	return p.finished
}

// openPinned opens a mux that the caller closes.
func openPinned(t *testing.T, h *netlab.Host, cfg mux.Config) (m *mux.Mux) {
	t.Helper()
	cfg.Interface, cfg.NetNS = h.Interface, h.NS
	m, err := mux.Open(cfg)
	testutil.Must(t, err)
	return m
}
