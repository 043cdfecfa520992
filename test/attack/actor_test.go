package attack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// actor is the test's end of an agent's process.
type actor struct {
	uid     uint32
	cmd     *exec.Cmd
	orders  io.WriteCloser
	reports chan report // closed when the process has ended
	printed tail

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

// cast starts an agent of a user on a host. It is killed at the end of the test,
// if it has not ended before. Files become its descriptors from 3 on.
func cast(t testing.TB, h *netlab.Host, uid uint32, files ...*os.File) *actor {
	t.Helper()
	a := &actor{uid: uid, reports: make(chan report, 1)}
	// The link survives a change of user that takes the folder of this binary away.
	a.cmd = exec.Command("/proc/self/exe")
	a.cmd.Env = append(os.Environ(), agentVariable+"=1")
	a.cmd.SysProcAttr = netlab.User(uid)
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
	a.orders = stdin
	go func() {
		defer close(a.reports)
		for d := json.NewDecoder(stdout); ; {
			var r report
			if d.Decode(&r) != nil {
				return
			}
			a.reports <- r
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

func (a *actor) pid() int { return a.cmd.Process.Pid }

// kill ends the process as kill -9 does, and waits until it has ended.
func (a *actor) kill() error {
	a.once.Do(func() {
		a.cmd.Process.Kill()
		for range a.reports {
		}
		a.ended = a.cmd.Wait()
	})
	return a.ended
}

// leave lets the process end by itself.
func (a *actor) leave() error {
	a.once.Do(func() {
		a.orders.Close()
		timer := time.AfterFunc(unetd.Patience, func() { a.cmd.Process.Kill() })
		defer timer.Stop()
		for range a.reports {
		}
		a.ended = a.cmd.Wait()
	})
	return a.ended
}

var errAgentGone = errors.New("the agent's process has ended")

// try has an agent do something. The error is the agent's.
func (c command[A, R]) try(a *actor, arg A) (result R, err error) {
	with, err := json.Marshal(arg)
	if err != nil {
		return result, err
	}
	if err := json.NewEncoder(a.orders).Encode(order{string(c), with}); err != nil {
		return result, fmt.Errorf("%s: %w: %w", string(c), errAgentGone, err)
	}
	select {
	case r, ok := <-a.reports:
		switch {
		case !ok:
			return result, fmt.Errorf("%s: %w: %s", string(c), errAgentGone, a.printed.String())
		case r.Error != nil:
			err = r.Error
		}
		return result, errors.Join(err, json.Unmarshal(r.Result, &result))
	case <-time.After(4 * unetd.Patience):
		return result, fmt.Errorf("%s: the agent does not answer", string(c))
	}
}

// do is try, where nothing may go wrong.
func (c command[A, R]) do(t testing.TB, a *actor, arg A) R {
	t.Helper()
	result, err := c.try(a, arg)
	if err != nil {
		t.Fatalf("%s, by uid %d: %v", string(c), a.uid, err)
	}
	return result
}
