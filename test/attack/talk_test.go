package attack

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// record is what an agent sends on a connection to unetd, and what rides on it.
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
	// 0 and above: the XSK of a gun. From borrowed on: what was handed over.
	borrowed = 1000
)

type talkArg struct {
	Socket  string
	Records []record
	Shut    bool // the writing side afterwards
}

// talked is what unetd said until it ended the connection, or for a second.
type talked struct {
	Answers []string
	Ended   bool
	Errno   string // of a send that failed
}

// talk sends records to unetd's socket as they are.
var talk = teach("talk", func(a *agent, arg talkArg) (talked, error) {
	var t talked
	conn, err := dialRaw(arg.Socket)
	if err != nil {
		return t, err
	}
	defer conn.Close()
	for _, r := range arg.Records {
		oob, err := a.rights(r.Descriptors)
		if err != nil {
			return t, err
		}
		_, _, err = conn.WriteMsgUnix([]byte(r.Text+strings.Repeat(" ", r.Pad)), oob, nil)
		var errno unix.Errno
		if errors.As(err, &errno) {
			t.Errno = unix.ErrnoName(errno)
			break
		}
		if r.Wait && !t.listen(conn, tripTimeout) {
			return t, nil
		}
	}
	if arg.Shut {
		conn.CloseWrite()
	}
	for t.listen(conn, time.Second) {
	}
	return t, nil
})

// listen reads one answer. It is false when there is none.
func (t *talked) listen(conn *net.UnixConn, patience time.Duration) bool {
	conn.SetReadDeadline(time.Now().Add(patience))
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
	for deadline := time.Now().Add(tripTimeout); ; time.Sleep(time.Millisecond) {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		if err == nil || !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			return conn, err
		}
	}
}

// rights is a control message with files of an agent.
func (a *agent) rights(files []int) ([]byte, error) {
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
	case n >= borrowed:
		return int(a.borrowed[n-borrowed].Fd()), nil
	case n >= 0:
		return a.guns[n].fd, nil
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

// handArg is a gun's XSK and the name of an abstract socket.
type handArg struct {
	Gun  int
	Name string
}

// handOver gives an XSK to another process, as its owner may.
var handOver = teach("hand over", func(a *agent, arg handArg) (nothing, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nothing{}, err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrUnix{Name: "@" + arg.Name}
	return nothing{}, unix.Sendmsg(fd, []byte("x"), unix.UnixRights(a.guns[arg.Gun].fd), to, 0)
})

// await makes an abstract socket on which descriptors may be handed over.
var await = teach("await", func(a *agent, name string) (nothing, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@" + name, Net: "unixgram"})
	a.hand = conn
	return nothing{}, err
})

// borrow takes a descriptor that was handed over and returns its number.
var borrow = teach("borrow", func(a *agent, _ nothing) (int, error) {
	a.hand.SetReadDeadline(time.Now().Add(tripTimeout))
	oob := make([]byte, unix.CmsgSpace(4))
	_, oobn, _, _, err := a.hand.ReadMsgUnix(make([]byte, 1), oob)
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
	a.borrowed = append(a.borrowed, os.NewFile(uintptr(fds[0]), "borrowed"))
	return borrowed + len(a.borrowed) - 1, nil
})
