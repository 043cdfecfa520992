//go:build linux

package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unet-go/unet/test/internal/guest/agent"
)

// Process is a program that runs in a guest.
type Process struct {
	Args []string
	Done chan struct{} // closed when it has ended and Err is set
	Err  error         // how it has ended

	conn  net.Conn
	asks  sync.Mutex    // of out
	out   *json.Encoder // +checklocks:asks
	mu    sync.Mutex
	lines []string // +checklocks:mu
	more  *sync.Cond
}

// Start starts a program in the guest.
func (g *Guest) Start(command agent.Command) (*Process, error) {
	c, err := g.host.Dial("tcp", g.addr.String())
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	out := json.NewEncoder(c)
	if err := out.Encode(command); err != nil {
		c.Close()
		return nil, fmt.Errorf("guest: %w", err)
	}
	p := &Process{Args: command.Args, Done: make(chan struct{}), conn: c, out: out}
	p.more = sync.NewCond(&p.mu)
	go p.read()
	go func() { // a guest that has ended answers nothing
		select {
		case <-g.Done:
			c.Close()
		case <-p.Done:
		}
	}()
	return p, nil
}

func (p *Process) read() {
	in := json.NewDecoder(p.conn)
	for {
		var e agent.Event
		err := in.Decode(&e)
		if err != nil {
			p.Err = fmt.Errorf("guest: %w", err)
		} else if e.Ended && e.Error != "" {
			p.Err = errors.New(e.Error)
		}
		p.mu.Lock()
		if err != nil || e.Ended {
			close(p.Done)
		} else {
			p.lines = append(p.lines, e.Line)
		}
		p.more.Broadcast()
		p.mu.Unlock()
		if err != nil || e.Ended {
			return
		}
	}
}

// Output is what the program has printed until now, without the last newline.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// Lines is the number of lines that it has printed until now.
func (p *Process) Lines() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}

// Await returns the first line with text in it among those from a line on. It fails when the
// program ends without one, and after testTimeout.
func (p *Process) Await(text string, from int, testTimeout time.Duration) (string, error) {
	deadline := time.Now().Add(testTimeout)
	timer := time.AfterFunc(testTimeout, func() { p.mu.Lock(); p.more.Broadcast(); p.mu.Unlock() })
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; ; p.more.Wait() {
		for ; from < len(p.lines); from++ {
			if strings.Contains(p.lines[from], text) {
				return p.lines[from], nil
			}
		}
		select {
		case <-p.Done:
			return "", fmt.Errorf("%s ended (%v) without printing %q", p.Args[0], p.Err, text)
		default:
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("%s has not printed %q within %v", p.Args[0], text, testTimeout)
		}
	}
}

func (p *Process) ask(r agent.Request) error {
	p.asks.Lock()
	defer p.asks.Unlock()
	return p.out.Encode(r)
}

// Signal sends the program a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.ask(agent.Request{Signal: s}) }

// Input writes a line to the program's standard input.
func (p *Process) Input(line string) error { return p.ask(agent.Request{Input: line}) }

// Kill kills the program, and returns when it has ended. A program that has ended already is no error.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	select {
	case <-p.Done:
	case <-time.After(killTime): // a child has its output
	}
	p.conn.Close()
	<-p.Done
}

// killTime is how long a killed program's end is waited for.
const killTime = 10 * time.Second
