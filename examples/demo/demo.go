//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
)

// Config is what a demonstration needs.
type Config struct {
	Command     []string // runs unetd; its arguments are appended
	Application []string // runs Application
	Neighbour   []string // runs Neighbour; the address of the application is appended
	Stdin       io.Reader
	Stdout      io.Writer
	Color       bool // Stdout is a terminal
	Pause       bool // read a line from Stdin before each step
}

const policyFile = "/run/unet/policy.yaml"

const policy = `rules:
  - name: demo
    users: [65534] # nobody
    tags: ["tcp:*:1024-65535", "udp:*:1024-65535", "msg:7"]
    endpoints: 3
    memory: 64MiB
`

// demo is a running demonstration: unetd and the application are on host a.
type demo struct {
	screen
	cfg         Config
	step        int
	pair        *netlab.Pair
	unetd       *process
	application *process
	running     []*process // all that were started
	input       <-chan error
}

// Run runs the demonstration. The calling goroutine must not be used for anything else afterwards, because its
// thread stays in another mount namespace.
func Run(ctx context.Context, cfg Config) error {
	if os.Geteuid() != 0 {
		return errors.New("the demonstration makes network namespaces, which needs root: sudo bin/demo")
	}
	d := &demo{screen: screen{out: cfg.Stdout, color: cfg.Color}, cfg: cfg}
	err := d.run(ctx)
	for _, p := range slices.Backward(d.running) {
		p.kill()
	}
	if d.pair != nil {
		err = errors.Join(err, d.pair.Close())
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; nothing is left of the demonstration")
	}
	if err != nil {
		return fmt.Errorf("%w (unetd doctor examines this system)", err)
	}
	return nil
}

func (d *demo) run(ctx context.Context) error {
	for _, step := range []struct {
		title string
		show  func(context.Context) error
	}{
		{"Two hosts", d.hosts},
		{"unetd serves host a", d.serveFirst},
		{"An application without privileges", d.open},
		{"A kernel talks to it", d.talk},
		{"Who has the port?", d.holder},
		{"See the frames", d.capture},
		{"What the policy does not permit", d.refused},
		{"A forged message", d.forged},
		{"kill -9 of unetd", d.restart},
		{"Two processes of one host", d.neighbour},
		{"Where did the frames go?", d.count},
		{"The end", d.end},
	} {
		if err := d.begin(ctx, step.title); err != nil {
			return err
		}
		if err := step.show(ctx); err != nil {
			return fmt.Errorf("step %d: %w", d.step, err)
		}
	}
	return nil
}

// begin writes the title of the next step.
func (d *demo) begin(ctx context.Context, title string) error {
	if d.step > 0 {
		if err := d.pause(ctx); err != nil {
			return err
		}
		d.say("")
	}
	d.step++
	d.line(bold, fmt.Sprintf("%d. %s", d.step, title))
	return nil
}

// pause waits for a line of input, if that was asked for.
func (d *demo) pause(ctx context.Context) error {
	if !d.cfg.Pause {
		return ctx.Err()
	}
	if d.input == nil {
		input := make(chan error)
		go func() {
			for in := bufio.NewReader(d.cfg.Stdin); ; {
				_, err := in.ReadString('\n')
				input <- err
			}
		}()
		d.input = input
	}
	d.line(dim, "-- Enter: go on --")
	select {
	case err := <-d.input:
		if err != nil {
			return fmt.Errorf("--pause: standard input: %w", err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *demo) hosts(context.Context) (err error) {
	if err := hide(); err != nil {
		return err
	}
	if d.pair, err = netlab.NewPair(netlab.Config{}); err != nil {
		return err
	}
	d.say(fmt.Sprintf(`Two network namespaces, joined by a veth pair, whose ends are named %s:
  a  %v  unetd will serve its interface
  b  %v  an ordinary host: it has kernel sockets only
No interface, socket or file of this machine is used.`, netlab.Interface, d.pair.A.Addr, d.pair.B.Addr))
	return nil
}

func (d *demo) serveFirst(ctx context.Context) error {
	if err := errors.Join(os.MkdirAll("/run/unet", 0o755), os.WriteFile(policyFile, []byte(policy), 0o600)); err != nil {
		return err
	}
	d.say("unetd grants endpoints by a policy. No frame passes through unetd itself: BPF programs\nin the kernel deliver frames to endpoints, and all others to the kernel's sockets.\nIts log is shown without warnings: unetd doctor has those that are about this system.")
	d.prompt("cat", policyFile)
	d.say(strings.TrimSuffix(policy, "\n"))
	return d.serve(ctx)
}

// serve starts unetd and waits until it is ready.
func (d *demo) serve(ctx context.Context) error {
	args := []string{"serve", "--interface", netlab.Interface, "--policy", policyFile, "--socket-mode", "0666"}
	d.prompt("unetd", append(args, "&")...)
	ready, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := d.command(append(args, "--ready-fd", "3")...)
	cmd.ExtraFiles = []*os.File{w}
	d.unetd, err = d.start(ctx, "unetd", cmd)
	w.Close()
	if err != nil {
		return err
	}
	if err := ready.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if line, err := io.ReadAll(ready); string(line) != "ready\n" { // at the end of unetd this is the end of the pipe
		return errors.Join(errors.New("unetd did not start"), err, ctx.Err())
	}
	return nil
}

func (d *demo) start(ctx context.Context, name string, cmd *exec.Cmd) (*process, error) {
	p, err := d.screen.start(ctx, d.pair.A, name, cmd)
	if err == nil {
		d.running = append(d.running, p)
	}
	return p, err
}

// startNobody starts a process without privileges on host a.
func (d *demo) startNobody(ctx context.Context, name string, args ...string) (*process, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = netlab.Nobody()
	p, err := d.start(ctx, name, cmd)
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w: the file of this command must be executable for user nobody", err)
	}
	return p, err
}

func (d *demo) command(args ...string) *exec.Cmd {
	return exec.Command(d.cfg.Command[0], slices.Concat(d.cfg.Command[1:], args)...)
}

// prompt shows a command.
func (d *demo) prompt(name string, args ...string) {
	for i, a := range args {
		if strings.ContainsAny(a, " =:") {
			args[i] = "'" + a + "'"
		}
	}
	d.line(bold, "# "+strings.Join(append([]string{name}, args...), " "))
}

// ask shows a command of unetd on host a, and runs it to its end.
func (d *demo) ask(ctx context.Context, args ...string) error {
	d.prompt("unetd", slices.Clone(args)...)
	d.mu.Lock() // the lines of other processes wait
	defer d.mu.Unlock()
	return d.execute(ctx, d.out, args...)
}

// askUntil is ask, when the output has a part: processes publish their sockets at most ten times a second.
func (d *demo) askUntil(ctx context.Context, part string, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("unetd %s did not show %q within %v", args[0], part, within))
	defer cancel()
	for {
		var out strings.Builder
		if err := d.execute(ctx, &out, args...); err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if strings.Contains(out.String(), part) {
			return d.ask(ctx, args...)
		}
	}
}

func (d *demo) execute(ctx context.Context, out io.Writer, args ...string) error {
	cmd := d.command(args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = netlab.Bound()
	if err := d.pair.A.Do(cmd.Start); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return errors.Join(fmt.Errorf("unetd %s: %w", args[0], err), ctx.Err())
	}
	return nil
}

func (d *demo) open(ctx context.Context) (err error) {
	d.say("It runs as user nobody, without a capability. unetd gives it an endpoint: memory and four\nrings by which it sends and receives frames. It listens with unet.Open and Host.Listen.")
	if d.application, err = d.startNobody(ctx, "application", d.cfg.Application...); err != nil {
		return err
	}
	if err := d.application.await(ctx, saysListening); err != nil {
		return err
	}
	return d.ask(ctx, "list")
}

// dial connects a kernel socket of host b to the application.
func (d *demo) dial(ctx context.Context, network string) (net.Conn, error) {
	conn, err := d.pair.B.Dial(network, fmt.Sprintf("%v:%d", d.pair.A.IP(), port))
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	return conn, conn.SetDeadline(time.Now().Add(within))
}

// roundTrip sends text and expects it back.
func roundTrip(conn net.Conn, text string) error {
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	answer := make([]byte, len(text))
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if string(answer) != text {
		return fmt.Errorf("sent %q, but the answer is %q", text, answer)
	}
	return nil
}

func (d *demo) talk(ctx context.Context) error {
	conn, err := d.dial(ctx, "tcp")
	if err != nil {
		return err
	}
	defer conn.Close()
	const trips = 1000
	for range trips {
		if err := roundTrip(conn, "hello"); err != nil {
			return err
		}
	}
	d.say(fmt.Sprintf("Host b has opened a TCP connection by a kernel socket, %v, and has sent\n\"hello\" %d times. The application has sent it back each time. On host a the kernel\nand ss have no such connection. unetd status has it:", conn.LocalAddr(), trips))
	return d.askUntil(ctx, fmt.Sprint(" ", trips*len("hello"), " "), "status", "-t")
}

func (d *demo) holder(ctx context.Context) error {
	l, err := d.pair.A.Listen("tcp", fmt.Sprint(":", port))
	if err == nil {
		l.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("a kernel socket of host a at port %d: %v, want %w", port, err, syscall.EADDRINUSE)
	}
	d.say(fmt.Sprintf("A program of host a, with kernel sockets, cannot listen at this port:\n  %v\nss shows no TCP listener there. unetd status shows the holder:", err))
	return d.askUntil(ctx, "listening", "status", "-tl")
}

// captured runs a capture that ends after some packets, which traffic makes.
func (d *demo) captured(ctx context.Context, traffic func() error, args ...string) error {
	args = append([]string{"capture"}, args...)
	d.prompt("unetd", append(slices.Clone(args), "&")...)
	p, err := d.start(ctx, "capture", d.command(args...))
	if err != nil {
		return err
	}
	if err := p.await(ctx, "capturing "); err != nil {
		return err
	}
	if err := traffic(); err != nil {
		return err
	}
	return p.wait(ctx)
}

func (d *demo) capture(ctx context.Context) error {
	d.say("tcpdump does not see what endpoints send. unetd capture does. Host b sends a datagram:")
	conn, err := d.dial(ctx, "udp")
	if err != nil {
		return err
	}
	defer conn.Close()
	return d.captured(ctx, func() error { return roundTrip(conn, "hello") }, "--interface", netlab.Interface, "-c", "2")
}

func (d *demo) refused(ctx context.Context) error {
	d.say("The policy permits nobody ports from 1024 on. The application asks for UDP port 53:")
	if err := d.application.tell(tellListen, "53"); err != nil {
		return err
	}
	return d.application.await(ctx, saysRefused)
}

func (d *demo) forged(ctx context.Context) error {
	d.say(fmt.Sprintf("The application opens a second endpoint, which has message tag %d, and writes a message as\nif from tag 8. The program at its port drops the frame, with the reason:", messageTag))
	return d.captured(ctx, func() error {
		if err := d.application.tell(tellForge, d.pair.B.IP().String(), "8"); err != nil {
			return err
		}
		return d.application.await(ctx, saysSent)
	}, "--interface", netlab.Interface, "-c", "1")
}

// restart kills unetd and starts another one while a connection of host b has traffic.
func (d *demo) restart(ctx context.Context) error {
	conn, err := d.dial(ctx, "tcp")
	if err != nil {
		return err
	}
	defer conn.Close()
	var trips atomic.Uint64
	more := make(chan struct{}, 1)
	failed := make(chan error, 1)
	go func() {
		for {
			if err := roundTrip(conn, "hello"); err != nil {
				failed <- err
				return
			}
			trips.Add(1)
			select {
			case more <- struct{}{}:
			default:
			}
		}
	}()
	const each = 500
	// further waits for that many more round trips.
	further := func() error {
		for until := trips.Load() + each; trips.Load() < until; {
			select {
			case <-more:
			case err := <-failed:
				return errors.Join(err, ctx.Err())
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	if err := further(); err != nil {
		return err
	}
	d.say("Host b sends \"hello\" over a TCP connection again and again, and unetd is killed:")
	d.prompt("kill", "-9", strconv.Itoa(d.unetd.cmd.Process.Pid))
	d.unetd.kill()
	if err := d.application.await(ctx, saysGone); err != nil {
		return err
	}
	without := trips.Load()
	if err := further(); err != nil {
		return err
	}
	without = trips.Load() - without
	d.say("Programs, tables and ports are pinned in the kernel. The next unetd takes them over:")
	if err := d.serve(ctx); err != nil {
		return err
	}
	if err := d.application.await(ctx, saysBack); err != nil {
		return err
	}
	if err := further(); err != nil {
		return err
	}
	if err := d.ask(ctx, "list"); err != nil {
		return err
	}
	d.say(fmt.Sprintf("%d round trips so far on this connection, %d of them without unetd. None has failed.", trips.Load(), without))
	return nil
}

// neighbour shows that two processes of host a talk by memory.
func (d *demo) neighbour(ctx context.Context) error {
	d.say("A second process of host a opens an endpoint and connects to the application, at the same\naddress as host b. Their frames go through memory that both map, without the kernel. It sends\n\"hello\" there and back 4000 times, and as often over lo by package net. These are the medians:")
	p, err := d.startNobody(ctx, "neighbour", append(slices.Clone(d.cfg.Neighbour), fmt.Sprintf("%v:%d", d.pair.A.IP(), port))...)
	if err != nil {
		return err
	}
	if err := p.await(ctx, saysMeasured); err != nil {
		return err
	}
	if err := d.ask(ctx, "list"); err != nil {
		return err
	}
	if err := p.stdin.Close(); err != nil {
		return err
	}
	return p.wait(ctx)
}

func (d *demo) count(ctx context.Context) error {
	d.say("Each frame is counted, by what became of it. tx_forged_tag is the forged message:")
	if err := d.ask(ctx, "counters"); err != nil {
		return err
	}
	d.say("Do they add up?")
	return d.ask(ctx, "counters", "--check")
}

func (d *demo) end(ctx context.Context) error {
	d.say("The application closes its host and ends. unetd gets SIGTERM, and removes what it made.")
	if err := d.application.stdin.Close(); err != nil {
		return err
	}
	if err := d.application.wait(ctx); err != nil {
		return fmt.Errorf("the application: %w", err)
	}
	if err := d.unetd.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := d.unetd.wait(ctx); err != nil {
		return fmt.Errorf("unetd: %w", err)
	}
	var names []string
	err := d.pair.A.Do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"lo", netlab.Interface}) {
		return fmt.Errorf("interfaces are left on host a: %v", names)
	}
	d.say(fmt.Sprintf("Host a has its two interfaces again: %s. Both hosts end with this command.", strings.Join(names, ", ")))
	return nil
}
