//go:build linux

package attack

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
)

const (
	openRecord = `{"v":1,"id":1,"op":"open","open":{"geometry":{"frame_count":64,"fill_size":32,"rx_size":32,"tx_size":32,"completion_size":32}}}`
	claimAny   = `{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}`
)

// malformedRecords are first records that end a connection.
func malformedRecords() (records []record) {
	for _, text := range []string{
		"x", "\x00", "{", "}", "[]", "null", "1", `""`, "{}", `{"v":1}`, `{"v":1,"id":1}`, openRecord + "{}", openRecord[:len(openRecord)-1],
		strings.Repeat("[", 60000), strings.Repeat(`{"v":`, 10000), "\xff\xfe\xfd", `{"v":1,"id":1,"op":"\ud800"}`,
		`{"v":2,"id":1,"op":"open","open":{}}`, `{"v":-1,"id":1,"op":"open","open":{}}`, `{"v":1e99,"id":1,"op":"open","open":{}}`, `{"v":"1","id":1,"op":"open","open":{}}`,
		`{"v":1,"id":0,"op":"open","open":{}}`, `{"v":1,"id":-1,"op":"open","open":{}}`, `{"v":1,"id":18446744073709551616,"op":"open","open":{}}`,
		`{"v":1,"id":1,"op":"open"}`, `{"v":1,"id":1,"op":"open","open":[]}`, `{"v":1,"id":1,"op":"open","open":{"attach":"root"}}`, `{"v":1,"id":1,"op":"open","open":{"uid":0}}`,
		`{"v":1,"id":1,"op":"open","open":{},"tag":"msg:1"}`, `{"v":1,"id":1,"op":"open","open":{},"uid":0}`, `{"v":1,"v":1,"id":1,"op":"shut down"}`,
		`{"v":1,"id":1,"op":"open","open":{"tags":[` + strings.TrimSuffix(strings.Repeat(`"msg:1",`, 4000), ",") + `]}}`,
		`{"v":1,"id":1,"op":"claim","tag":"msg:1"}`, `{"v":1,"id":1,"op":"unclaim","tag":"msg:1"}`, `{"v":1,"id":1,"op":"resolve","addr":"10.0.0.2"}`,
		`{"v":1,"id":1,"op":"present"}`, `{"v":1,"id":1,"op":"list","after":-1}`, `{"v":1,"id":1,"op":"close"}`, `{"v":1,"id":1,"op":"OPEN","open":{}}`,
		`{"v":1,"event":"closed","message":"over"}`, `{"v":1,"id":1,"grant":{}}`, `{"v":1,"id":1,"error":{"code":"x","message":"y"}}`,
	} {
		records = append(records, record{Text: text})
	}
	return append(records, record{}, // of length 0, which is the end
		record{Text: openRecord, Pad: 1 << 16}, record{Text: openRecord, Pad: 150_000}, record{Text: " ", Pad: 1 << 16})
}

// wantEnded checks that unetd has ended each conversation, and notes how.
func (s *caseRun) wantEnded(what []string, all []conversation) {
	s.Helper()
	said := map[string]int{}
	for i, t := range all {
		if !t.Ended {
			s.Errorf("%s: the connection goes on, after %q", what[i], t.Answers)
		}
		last := "nothing"
		if len(t.Answers) > 0 {
			if last = codeOf(t.Answers[len(t.Answers)-1]); last == "an answer" && strings.Contains(t.Answers[len(t.Answers)-1], `"lease"`) {
				s.Errorf("%s: %s", what[i], t.Answers)
			}
		}
		if t.Errno != "" {
			last = t.Errno
		}
		said[last]++
	}
	s.row.note("%d conversations ended by unetd; last words: %s", len(all), countsText(said))
}

// codeOf is the error code in an answer.
func codeOf(answer string) string {
	if _, rest, ok := strings.Cut(answer, `"code":"`); ok {
		code, _, _ := strings.Cut(rest, `"`)
		return code
	}
	return "an answer"
}

// talkEach holds each on a connection of its own.
func (s *caseRun) talkEach(all map[string][]record) {
	s.Helper()
	a := startAgent(s, s.pair.A, attackerID)
	var what []string
	var outcomes []conversation
	for name, records := range all {
		what = append(what, name)
		outcomes = append(outcomes, talk.do(s, a, talkArg{Socket: s.unetd.Socket, Records: records}))
	}
	s.wantEnded(what, outcomes)
}

func controlCases(idle *idleClients) []attackCase {
	return []attackCase{
		{"malformed records", "first records that are not JSON, not a request, of another version, with unknown fields, too deep, too long, empty", func(s *caseRun) {
			all := map[string][]record{}
			for i, r := range malformedRecords() {
				all[fmt.Sprintf("record %d: %.60q", i, r.Text)] = []record{r}
			}
			s.talkEach(all)
		}},
		{"records out of order", "an open twice, requests before the open, identifiers used twice, operators' requests after an open, a present after an open", func(s *caseRun) {
			open, granted := record{Text: openRecord}, record{Text: openRecord, Wait: true}
			s.talkEach(map[string][]record{
				"open twice":         {granted, {Text: strings.Replace(openRecord, `"id":1`, `"id":2`, 1)}},
				"open twice at once": {open, open},
				"claim at once":      {open, {Text: claimAny}, {Text: "x"}}, // the claim is no violation if unetd has answered the open before it
				"claim before open":  {{Text: claimAny}, open},
				"list after open":    {granted, {Text: `{"v":1,"id":2,"op":"list"}`}},
				"counters after":     {granted, {Text: `{"v":1,"id":2,"op":"counters"}`}},
				"present after open": {granted, {Text: `{"v":1,"id":2,"op":"present"}`}},
				"garbage after open": {granted, {Text: "x"}},
				"zero after open":    {granted, {}},
			})
		}},
		{"descriptors that nobody asked for", "1, 2 and 253 of them on an open, a claim, a resolve, a list, on malformed and on empty records", func(s *caseRun) {
			before := descriptorsOf(s, s.unetd.PID())
			all := map[string][]record{}
			for _, n := range []int{1, 2, 253} {
				files := make([]int, n)
				for i := range files {
					files[i] = anyFile
				}
				granted := record{Text: openRecord, Wait: true}
				all[fmt.Sprintf("%d on open", n)] = []record{{Text: openRecord, Descriptors: files}}
				all[fmt.Sprintf("%d on claim", n)] = []record{granted, {Text: claimAny, Descriptors: files}}
				all[fmt.Sprintf("%d on resolve", n)] = []record{granted, {Text: `{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2"}`, Descriptors: files}}
				all[fmt.Sprintf("%d on list", n)] = []record{{Text: `{"v":1,"id":1,"op":"list"}`, Descriptors: files}}
				all[fmt.Sprintf("%d on a malformed record", n)] = []record{{Text: "x", Descriptors: files}}
				all[fmt.Sprintf("%d on a long record", n)] = []record{{Text: "x", Pad: 100_000, Descriptors: files}}
				all[fmt.Sprintf("%d on an empty record", n)] = []record{{Descriptors: files}}
				if n != 1 {
					all[fmt.Sprintf("%d on present", n)] = []record{{Text: `{"v":1,"id":1,"op":"present"}`, Descriptors: files}}
				}
			}
			s.talkEach(all)
			if !testutil.Until(func() bool { return descriptorsOf(s, s.unetd.PID()) <= before+8 }) { // the neighbour may be opening something
				s.Errorf("unetd has %d descriptors, %d before", descriptorsOf(s, s.unetd.PID()), before)
			}
		}},
		{"too many requests at once", "1,000 claims and resolves of addresses that nobody has, without waiting for answers", func(s *caseRun) {
			records := []record{{Text: openRecord, Wait: true}}
			for i := range 1000 {
				text := fmt.Sprintf(`{"v":1,"id":%d,"op":"claim","tag":"udp:10.0.0.1:0"}`, i+2)
				if i%2 == 0 {
					text = fmt.Sprintf(`{"v":1,"id":%d,"op":"resolve","addr":"10.0.0.%d"}`, i+2, 100+i%100)
				}
				records = append(records, record{Text: text})
			}
			a := startAgent(s, s.pair.A, attackerID)
			t := talk.do(s, a, talkArg{Socket: s.unetd.Socket, Records: records})
			said := map[string]int{}
			for _, answer := range t.Answers {
				said[codeOf(answer)]++
			}
			if said["busy"] == 0 {
				s.Error("nothing was refused")
			}
			s.row.note("%s %s", countsText(said), t.Errno)
		}},
		{"hostile destinations", "1,024 resolves of link-local addresses with zones of 12,000 bytes that JSON makes six times as long, then a neighbour with another MAC address", func(s *caseRun) {
			neighbour := func(last byte) {
				if err := s.pair.A.Do(func() error {
					up, err := netlink.LinkByName(s.pair.A.Interface)
					if err != nil {
						return err
					}
					return netlink.NeighSet(&netlink.Neigh{LinkIndex: up.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
						IP: net.IPv4(10, 0, 0, 99), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0x99, last}})
				}); err != nil {
					s.Fatal(err)
				}
			}
			neighbour(1)
			before, err := memoryOf(fmt.Sprintf("/proc/%d/status", s.unetd.PID()), "VmRSS")
			if err != nil {
				s.Fatal(err)
			}
			a := s.startAttacker(tagged())
			said := resolveHostile.do(s, a.agentProcess, hostileArg{s.unetd.Socket, 1024, strings.Repeat("<", 12000)})
			for i := range 8 { // the first state of a neighbour is not reported
				neighbour(byte(2 + i))
			}
			b := openEndpoint.do(s, a.agentProcess, openArg{s.unetd.Socket, endpoint.Request{Geometry: smallGeometry}})
			after, err := memoryOf(fmt.Sprintf("/proc/%d/status", s.unetd.PID()), "VmRSS")
			if err != nil {
				s.Fatal(err)
			}
			if grown := after - before; grown > 64<<10 {
				s.Errorf("unetd has grown by %d KiB", grown)
			}
			s.row.note("%s; unetd has granted endpoint %d afterwards and grown by %d KiB", countsText(said), b.ID, after-before)
		}},
		{"idle connections", "connections that send nothing, half a request, or that never read their answers, since the suite began", func(s *caseRun) {
			idle.wantEnded(s)
		}},
	}
}

// idleClients are a user's connections that send nothing, or do not read answers.
type idleClients struct {
	process *agentProcess
	since   time.Time
}

type idleArg struct {
	Socket       string
	Idle, Unread int
}

// openIdle opens connections and leaves them open: idle ones, and others that open an
// endpoint, request more than fits into the socket, and never read.
var openIdle = newCommand("openIdle", func(a *agent, arg idleArg) (nothing, error) {
	for range arg.Idle {
		conn, err := dialRaw(arg.Socket)
		if err != nil {
			return nothing{}, err
		}
		a.idleConns = append(a.idleConns, conn)
	}
	for range arg.Unread {
		conn, err := dialRaw(arg.Socket)
		if err != nil {
			return nothing{}, err
		}
		a.idleConns = append(a.idleConns, conn)
		if _, err := conn.Write([]byte(openRecord)); err != nil {
			return nothing{}, err
		}
		go func() {
			for i := 2; ; i++ {
				if _, err := fmt.Fprintf(conn, `{"v":1,"id":%d,"op":"unclaim","tag":"udp:10.0.0.1:%d"}`, i, 1+i%65535); err != nil {
					return
				}
			}
		}()
	}
	return nothing{}, nil
})

// countOpen is how many connections unetd has not ended yet.
var countOpen = newCommand("countOpen", func(a *agent, _ nothing) (left int, err error) {
	for _, conn := range a.idleConns {
		raw, err := conn.SyscallConn()
		if err != nil {
			return 0, err
		}
		raw.Control(func(fd uintptr) {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			if n, _ := unix.Poll(p, 0); n == 0 || p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) == 0 {
				left++
			}
		})
	}
	return left, nil
})

func startIdleClients(t testing.TB, w *world) *idleClients {
	l := &idleClients{startAgent(t, w.pair.A, idleID), time.Now()}
	openIdle.do(t, l.process, idleArg{w.unetd.Socket, 20, 4})
	return l
}

// wantEnded waits until unetd has ended them all.
func (l *idleClients) wantEnded(s *caseRun) {
	left := 0
	if !testutil.Until(func() bool { left = countOpen.do(s, l.process, nothing{}); return left == 0 }) {
		s.Errorf("unetd has not ended %d connections in %v", left, time.Since(l.since))
	}
	s.row.note("20 idle connections and 4 that read nothing ended by unetd")
	l.process.kill()
}

// descriptorsOf is how many a process has.
func descriptorsOf(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// record is what an agent sends on a connection to unetd, with the descriptors that are attached.
type record struct {
	Text        string
	Pad         int   // bytes of spaces behind it
	Descriptors []int // of the agent's files, see file; several may be one
	Wait        bool  // for an answer, before the next one
}

// Files that an agent attaches to a record.
const (
	anyFile   = -1 // /dev/null
	udpSocket = -2
	memfd     = -3
	// 0 and above: the XSK of a raw endpoint. From firstReceived on: descriptors of other processes.
	firstReceived = 1000
)

type talkArg struct {
	Socket  string
	Records []record
	Shut    bool // the writing side afterwards
}

// conversation is what unetd sent until it ended the connection or a second was over.
type conversation struct {
	Answers []string
	Ended   bool
	Errno   string // of a send that failed
}

type hostileArg struct {
	Socket string
	Count  int
	Zone   string
}

// maxViolations is how many connections resolveHostile lets unetd end.
const maxViolations = 16

// resolveHostile resolves addresses with long zones, and leaves the connections open. Each is refused,
// and may end its connection. It returns the codes.
var resolveHostile = newCommand("resolveHostile", func(a *agent, arg hostileArg) (map[string]int, error) {
	said := map[string]int{}
	var conn *net.UnixConn
	for i := 0; i < arg.Count && said["protocol"] < maxViolations; i++ {
		if conn == nil {
			var err error
			if conn, err = dialRaw(arg.Socket); err != nil {
				return said, err
			}
			if len(a.idleConns) < 64 {
				a.idleConns = append(a.idleConns, conn)
			}
			var t conversation
			if _, err := conn.Write([]byte(openRecord)); err != nil || !t.readAnswer(conn, requestTimeout) || codeOf(t.Answers[0]) != "an answer" {
				return said, fmt.Errorf("open %d: %v, %v", i, t.Answers, err)
			}
		}
		text := fmt.Sprintf(`{"v":1,"id":%d,"op":"resolve","addr":"fe80::%x%%%s"}`, i+2, i+1, arg.Zone)
		var t conversation
		if _, err := conn.Write([]byte(text)); err != nil || !t.readAnswer(conn, requestTimeout) {
			return said, fmt.Errorf("resolve %d: %v, %v", i, t, err)
		}
		code := codeOf(t.Answers[0])
		said[code]++
		if code == "protocol" {
			conn.Close()
			conn = nil
		}
	}
	return said, nil
})

// talk sends records to unetd's socket as they are.
var talk = newCommand("talk", func(a *agent, arg talkArg) (conversation, error) {
	var t conversation
	conn, err := dialRaw(arg.Socket)
	if err != nil {
		return t, err
	}
	defer conn.Close()
	for _, r := range arg.Records {
		oob, err := a.controlMessage(r.Descriptors)
		if err != nil {
			return t, err
		}
		_, _, err = conn.WriteMsgUnix([]byte(r.Text+strings.Repeat(" ", r.Pad)), oob, nil)
		var errno unix.Errno
		if errors.As(err, &errno) {
			t.Errno = unix.ErrnoName(errno)
			break
		}
		if r.Wait && !t.readAnswer(conn, requestTimeout) {
			return t, nil
		}
	}
	if arg.Shut {
		conn.CloseWrite()
	}
	for t.readAnswer(conn, time.Second) {
	}
	return t, nil
})

// readAnswer reads one answer. It is false when there is none.
func (t *conversation) readAnswer(conn *net.UnixConn, testTimeout time.Duration) bool {
	conn.SetReadDeadline(time.Now().Add(testTimeout))
	buf, oob := make([]byte, 1<<16), make([]byte, 4096)
	n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
	if n == 0 || err != nil {
		t.Ended = !errors.Is(err, os.ErrDeadlineExceeded)
		return false
	}
	t.Answers = append(t.Answers, string(buf[:n]))
	closeRights(oob[:oobn])
	return true
}

func dialRaw(socket string) (*net.UnixConn, error) {
	for deadline := time.Now().Add(requestTimeout); ; time.Sleep(time.Millisecond) {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		if err == nil || !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			return conn, err
		}
	}
}

// controlMessage is a control message with files of an agent.
func (a *agent) controlMessage(files []int) ([]byte, error) {
	if len(files) == 0 {
		return nil, nil
	}
	var fds []int
	for _, n := range files {
		fd, err := a.file(n)
		if err != nil {
			return nil, err
		}
		fds = append(fds, fd)
	}
	return unix.UnixRights(fds...), nil
}

// file finds one of an agent's files.
func (a *agent) file(n int) (int, error) {
	var f *os.File
	var err error
	switch {
	case n >= firstReceived:
		return int(a.receivedFiles[n-firstReceived].Fd()), nil
	case n >= 0:
		return a.endpoints[n].fd, nil
	case n == anyFile:
		f, err = os.Open(os.DevNull)
	case n == udpSocket:
		var fd int
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		f = os.NewFile(uintptr(fd), "udp")
	case n == memfd:
		var fd int
		fd, err = unix.MemfdCreate("mine", unix.MFD_CLOEXEC)
		f = os.NewFile(uintptr(fd), "memfd")
	default:
		err = fmt.Errorf("BUG: no file %d", n)
	}
	if err != nil {
		return 0, err
	}
	a.hold(f)
	return int(f.Fd()), nil
}

func closeRights(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}
}

// sendDescriptorArg is a raw endpoint's XSK and the name of an abstract socket.
type sendDescriptorArg struct {
	Endpoint int
	Name     string
}

// sendDescriptor gives an XSK to another process, as its owner may.
var sendDescriptor = newCommand("sendDescriptor", func(a *agent, arg sendDescriptorArg) (nothing, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nothing{}, err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrUnix{Name: "@" + arg.Name}
	return nothing{}, unix.Sendmsg(fd, []byte("x"), unix.UnixRights(a.endpoints[arg.Endpoint].fd), to, 0)
})

// listenDescriptors makes an abstract socket on which descriptors may be handed over.
var listenDescriptors = newCommand("listenDescriptors", func(a *agent, name string) (nothing, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@" + name, Net: "unixgram"})
	a.descriptorSocket = conn
	return nothing{}, err
})

// receiveDescriptor takes a descriptor that was handed over and returns its number.
var receiveDescriptor = newCommand("receiveDescriptor", func(a *agent, _ nothing) (int, error) {
	a.descriptorSocket.SetReadDeadline(time.Now().Add(requestTimeout))
	oob := make([]byte, unix.CmsgSpace(4))
	_, oobn, _, _, err := a.descriptorSocket.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("%d control messages, %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, err
	}
	a.receivedFiles = append(a.receivedFiles, os.NewFile(uintptr(fds[0]), "received"))
	return firstReceived + len(a.receivedFiles) - 1, nil
})
