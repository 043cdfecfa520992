package attack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

// agentVariable in the environment makes a process of this binary an agent. It
// reads commands from its input and answers each on its output.
const agentVariable = "UNET_ATTACK_AGENT"

// agent is what an agent's process has.
type agent struct {
	guns      []*gun
	neighbour *neighbour
	held      []io.Closer     // connections and descriptors that it keeps
	loitering []*net.UnixConn // which it leaves alone
	hand      *net.UnixConn   // on which descriptors are handed over to it
	borrowed  []*os.File      // they
	busy      []*pastime
}

// order is a command on its way to an agent, and report the answer.
type order struct {
	Do   string          `json:"do"`
	With json.RawMessage `json:"with"`
}

type report struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *failure        `json:"error,omitempty"`
}

// failure carries an error between processes, with what it is.
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

// sentinels are the errors that the suite asks for.
var sentinels = map[string]error{
	"tag held":         endpoint.ErrTagHeld,
	"tag denied":       endpoint.ErrTagDenied,
	"geometry":         endpoint.ErrGeometry,
	"unreachable":      endpoint.ErrUnreachable,
	"lease closed":     endpoint.ErrLeaseClosed,
	"busy":             control.ErrBusy,
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

// commands is what agents do with the argument of an order.
var commands = map[string]func(*agent, json.RawMessage) (any, error){}

// teach makes a command of what an agent does.
func teach[A, R any](name string, f func(*agent, A) (R, error)) command[A, R] {
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

// runAgent does what it is told, until its input ends.
func runAgent(in io.Reader, out io.Writer) error {
	a := &agent{}
	orders, reports := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		switch err := orders.Decode(&o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		do, ok := commands[o.Do]
		if !ok {
			return fmt.Errorf("BUG: no command %q", o.Do)
		}
		result, err := do(a, o.With)
		r := report{Error: failureOf(err), Result: json.RawMessage("null")}
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

// pastime is something that an agent does until it is told to stop.
type pastime struct {
	stop chan struct{}
	done chan struct{}
	err  error
}

// begin runs f in the background. f returns soon after stop is closed.
func (a *agent) begin(f func(stop <-chan struct{}) error) {
	p := &pastime{stop: make(chan struct{}), done: make(chan struct{})}
	a.busy = append(a.busy, p)
	go func() {
		defer close(p.done)
		p.err = f(p.stop)
	}()
}

// rest ends everything that the agent does in the background.
var rest = teach("rest", func(a *agent, _ nothing) (nothing, error) {
	var errs []error
	for _, p := range a.busy {
		close(p.stop)
		<-p.done
		errs = append(errs, p.err)
	}
	a.busy = nil
	return nothing{}, errors.Join(errs...)
})
