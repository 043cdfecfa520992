//go:build linux

package attack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// agentProcess is the test's end of an agent's process.
type agentProcess struct {
	uid      uint32
	cmd      *exec.Cmd
	requests io.WriteCloser
	replies  chan reply // closed when the process has ended
	printed  tail

	once  sync.Once
	ended error
}

// tail keeps what a process prints.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (p *tail) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.Write(b)
}

func (p *tail) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.String()
}

// startAgent starts an agent of a user on a host. It is killed at the end of the test,
// if it has not ended before. Files become its descriptors from 3 on.
func startAgent(t testing.TB, h *netlab.Host, uid uint32, files ...*os.File) *agentProcess {
	t.Helper()
	return startAgentAs(t, h, netlab.User(uid), files...)
}

// startAgentAs is startAgent for a process with other attributes, which have a user.
func startAgentAs(t testing.TB, h *netlab.Host, attr *syscall.SysProcAttr, files ...*os.File) *agentProcess {
	t.Helper()
	uid := attr.Credential.Uid
	a := &agentProcess{uid: uid, replies: make(chan reply, 1)}
	// By this link the binary can also be executed if the user cannot reach its folder.
	a.cmd = exec.Command("/proc/self/exe")
	a.cmd.Env = append(os.Environ(), agentVariable+"=1")
	a.cmd.SysProcAttr = attr
	a.cmd.ExtraFiles = files
	a.cmd.Stderr = &a.printed
	stdin, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(a.cmd); err != nil {
		t.Fatal(err)
	}
	a.requests = stdin
	go func() {
		defer close(a.replies)
		for d := json.NewDecoder(stdout); ; {
			var r reply
			if d.Decode(&r) != nil {
				return
			}
			a.replies <- r
		}
	}()
	t.Cleanup(func() {
		a.kill()
		if out := a.printed.String(); t.Failed() && out != "" || strings.Contains(out, "DATA RACE") {
			t.Errorf("agent of uid %d printed:\n%s", uid, out)
		}
	})
	return a
}

func (a *agentProcess) pid() int { return a.cmd.Process.Pid }

// kill ends the process as kill -9 does, and waits until it has ended.
func (a *agentProcess) kill() error {
	a.once.Do(func() {
		a.cmd.Process.Kill()
		for range a.replies {
		}
		a.ended = a.cmd.Wait()
	})
	return a.ended
}

// leave closes the process's input, and waits until the process has ended.
func (a *agentProcess) leave() error {
	a.once.Do(func() {
		a.requests.Close()
		timer := time.AfterFunc(unetd.TestTimeout, func() { a.cmd.Process.Kill() })
		defer timer.Stop()
		for range a.replies {
		}
		a.ended = a.cmd.Wait()
	})
	return a.ended
}

var errAgentGone = errors.New("the agent's process has ended")

// try has an agent execute the command, and returns its result and error.
func (c command[A, R]) try(a *agentProcess, arg A) (result R, err error) {
	with, err := json.Marshal(arg)
	if err != nil {
		return result, err
	}
	if err := json.NewEncoder(a.requests).Encode(request{string(c), with}); err != nil {
		return result, fmt.Errorf("%s: %w: %w", string(c), errAgentGone, err)
	}
	select {
	case r, ok := <-a.replies:
		switch {
		case !ok:
			return result, fmt.Errorf("%s: %w: %s", string(c), errAgentGone, a.printed.String())
		case r.Error != nil:
			err = r.Error
		}
		return result, errors.Join(err, json.Unmarshal(r.Result, &result))
	case <-time.After(4 * unetd.TestTimeout):
		return result, fmt.Errorf("%s: the agent does not answer", string(c))
	}
}

// do is try for a command that must succeed.
func (c command[A, R]) do(t testing.TB, a *agentProcess, arg A) R {
	t.Helper()
	result, err := c.try(a, arg)
	if err != nil {
		t.Fatalf("%s, by uid %d: %v", string(c), a.uid, err)
	}
	return result
}

// agentVariable in the environment makes a process of this binary an agent. It
// reads commands from its input and answers each on its output.
const agentVariable = "UNET_ATTACK_AGENT"

// agent is what an agent's process has.
type agent struct {
	endpoints        []*rawEndpoint
	neighbour        *neighbour
	held             []io.Closer     // connections and descriptors that it keeps
	idleConns        []*net.UnixConn // which it neither reads nor closes
	descriptorSocket *net.UnixConn   // on which it receives descriptors of other processes
	receivedFiles    []*os.File      // those descriptors
	tasks            []*task
}

// request is a command that is sent to an agent, and reply the answer.
type request struct {
	Command  string          `json:"command"`
	Argument json.RawMessage `json:"argument"`
}

type reply struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *failure        `json:"error,omitempty"`
}

// failure carries an error between processes: its text, and what errors.Is has to find in it.
type failure struct {
	Text  string   `json:"text"`
	Kinds []string `json:"kinds,omitempty"`
	Errno uint     `json:"errno,omitempty"`
}

func (f *failure) Error() string { return f.Text }

func (f *failure) Is(target error) bool {
	for _, name := range f.Kinds {
		if sentinels[name] == target {
			return true
		}
	}
	errno, ok := target.(unix.Errno)
	return ok && f.Errno != 0 && unix.Errno(f.Errno) == errno
}

// sentinels are the errors that the suite compares with errors.Is.
var sentinels = map[string]error{
	"tag held":         endpoint.ErrTagHeld,
	"tag denied":       endpoint.ErrTagDenied,
	"geometry":         endpoint.ErrGeometry,
	"unreachable":      endpoint.ErrUnreachable,
	"lease closed":     endpoint.ErrLeaseClosed,
	"busy":             endpoint.ErrBusy,
	"protocol":         control.ErrProtocol,
	"permission":       os.ErrPermission,
	"unsupported":      errors.ErrUnsupported,
	"end of file":      io.EOF,
	"deadline is over": os.ErrDeadlineExceeded,
}

func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	for name, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			f.Kinds = append(f.Kinds, name)
		}
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		f.Errno = uint(errno)
	}
	return f
}

// command is something that an agent can do: its name, its argument, its result.
type command[A, R any] string

// commands are the functions of agents, by the name of the command.
var commands = map[string]func(*agent, json.RawMessage) (any, error){}

// newCommand registers f as a command of agents.
func newCommand[A, R any](name string, f func(*agent, A) (R, error)) command[A, R] {
	commands[name] = func(a *agent, with json.RawMessage) (any, error) {
		var arg A
		if err := json.Unmarshal(with, &arg); err != nil {
			return nil, err
		}
		return f(a, arg)
	}
	return command[A, R](name)
}

// nothing is the argument or the result of a command that has none.
type nothing struct{}

// runAgent executes commands until its input ends.
func runAgent(in io.Reader, out io.Writer) error {
	a := &agent{}
	orders, reports := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o request
		switch err := orders.Decode(&o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		do, ok := commands[o.Command]
		if !ok {
			return fmt.Errorf("BUG: no command %q", o.Command)
		}
		result, err := do(a, o.Argument)
		r := reply{Error: failureOf(err), Result: json.RawMessage("null")}
		if err == nil {
			if r.Result, err = json.Marshal(result); err != nil {
				return err
			}
		}
		if err := reports.Encode(r); err != nil {
			return err
		}
	}
}

// task is background work of an agent, which runs until it is stopped.
type task struct {
	stop chan struct{}
	done chan struct{}
	err  error
}

// runTask runs f in the background. f returns soon after stop is closed.
func (a *agent) runTask(f func(stop <-chan struct{}) error) {
	p := &task{stop: make(chan struct{}), done: make(chan struct{})}
	a.tasks = append(a.tasks, p)
	go func() {
		defer close(p.done)
		p.err = f(p.stop)
	}()
}

// repeatTask calls f until the agent is stopped or f fails.
func (a *agent) repeatTask(f func(stop <-chan struct{}) error) {
	a.runTask(func(stop <-chan struct{}) error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			if err := f(stop); err != nil {
				return err
			}
		}
	})
}

// stopTasks stops all background work of the agent.
var stopTasks = newCommand("stopTasks", func(a *agent, _ nothing) (nothing, error) {
	var errs []error
	for _, p := range a.tasks {
		close(p.stop)
		<-p.done
		errs = append(errs, p.err)
	}
	a.tasks = nil
	return nothing{}, errors.Join(errs...)
})
