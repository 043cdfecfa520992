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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
)

// application is the state of the process that tests start as an application. It reads a command from
// each line of its input, and writes one line as the answer.
type application struct {
	socket string
	grants map[string]*endpoint.Grant
	leases map[string]*control.Lease
	conns  map[string]net.Conn
}

func newApplication(socket string) *application {
	return &application{socket, map[string]*endpoint.Grant{}, map[string]*control.Lease{}, map[string]net.Conn{}}
}

func (a *application) run() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer, err := a.do(strings.Fields(lines.Text()))
		if err != nil {
			answer = codeOf(err) + ": " + err.Error()
		}
		fmt.Println(strings.ReplaceAll(answer, "\n", "; "))
	}
}

// codeOf names the sentinel of an error.
func codeOf(err error) string {
	for _, c := range []struct {
		name     string
		sentinel error
	}{
		{"tag-held", endpoint.ErrTagHeld}, {"tag-denied", endpoint.ErrTagDenied}, {"busy", endpoint.ErrBusy},
		{"closed", endpoint.ErrLeaseClosed}, {"permission", os.ErrPermission}, {"unsupported", errors.ErrUnsupported}, {"uplink", endpoint.ErrUplink},
	} {
		if errors.Is(err, c.sentinel) {
			return c.name
		}
	}
	return "error"
}

// do runs a command: its name, the name of an endpoint, and arguments.
func (a *application) do(words []string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	name := words[1]
	lease := a.leases[name]
	switch words[0] {
	case "open": // NAME [queue] [frames=N] [interface=NAME] TAG...
		req, err := request(words[2:])
		if err != nil {
			return "", err
		}
		g, l, err := control.Open(ctx, a.socket, req)
		if err != nil {
			return "", err
		}
		a.grants[name], a.leases[name] = g, l
		return fmt.Sprint(g.Tags), nil
	case "claim", "unclaim": // NAME TAG
		t, err := endpoint.ParseTag(words[2])
		if err != nil {
			return "", err
		}
		if words[0] == "unclaim" {
			return "ok", lease.Unclaim(ctx, t)
		}
		t, err = lease.Claim(ctx, t)
		return t.String(), err
	case "close": // NAME: ends the lease and keeps the rest
		return "ok", lease.Close()
	case "drop": // NAME: closes the descriptors
		return "ok", a.grants[name].Close()
	case "drop-xsk":
		return "ok", a.grants[name].XSK.Close()
	case "ended": // NAME: waits for the end of the lease, and returns its reason
		select {
		case <-lease.Done():
			return lease.Err().Error(), nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	case "dial": // NAME NETWORK ADDR:PORT: a connection of a host of its own
		host, err := unet.Open(ctx, unet.Config{Socket: a.socket})
		if err != nil {
			return "", err
		}
		c, err := host.DialContext(ctx, words[2], words[3])
		if err != nil {
			return "", err
		}
		a.conns[name] = c
		return c.LocalAddr().String(), nil
	case "serve": // NAME NETWORK ADDR: a listener of a host of its own, which sends back what it reads
		host, err := unet.Open(ctx, unet.Config{Socket: a.socket})
		if err != nil {
			return "", err
		}
		l, err := host.Listen(ctx, words[2], words[3])
		if err != nil {
			return "", err
		}
		go echoConnections(l)
		return l.Addr().String(), nil
	case "echo": // NAME TEXT: sends it on the connection, and reads as much
		c := a.conns[name]
		if err := c.SetDeadline(time.Now().Add(testTimeout)); err != nil {
			return "", err
		}
		if _, err := io.WriteString(c, words[2]); err != nil {
			return "", err
		}
		b := make([]byte, len(words[2]))
		_, err := io.ReadFull(c, b)
		return string(b), err
	case "capabilities":
		status, err := os.ReadFile("/proc/self/status")
		fields := map[string]string{}
		for line := range strings.Lines(string(status)) {
			key, value, _ := strings.Cut(line, ":")
			fields[key] = strings.TrimSpace(value)
		}
		return fmt.Sprintf("uid %d %s no_new_privs %s seccomp %s", os.Getuid(), fields["CapEff"], fields["NoNewPrivs"], fields["Seccomp"]), err
	}
	return "", fmt.Errorf("unknown command %q", words[0])
}

// request is the request that an open command describes.
func request(words []string) (req endpoint.Request, err error) {
	for _, w := range words {
		number, isFrames := strings.CutPrefix(w, "frames=")
		name, isInterface := strings.CutPrefix(w, "interface=")
		switch {
		case w == "queue":
			req.Attach = endpoint.AttachQueue
		case isInterface:
			req.Interface = name
		case isFrames:
			n, err := strconv.Atoi(number)
			if err != nil {
				return req, err
			}
			req.Geometry = smallGeometry(uint32(n))
		default:
			t, err := endpoint.ParseTag(w)
			if err != nil {
				return req, err
			}
			req.Tags = append(req.Tags, t)
		}
	}
	return req, nil
}

// app is the test's end of a running application.
type app struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

// startApp starts an application of user nobody, with supplementary groups.
func startApp(t *testing.T, socket string, groups ...uint32) *app {
	t.Helper()
	cmd := command(roleApp, socket)
	cmd.SysProcAttr = netlab.Nobody()
	cmd.SysProcAttr.Credential.Groups = groups
	return runApp(t, cmd)
}

// runApp starts an application by its command.
func runApp(t *testing.T, cmd *exec.Cmd) *app {
	t.Helper()
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a := &app{t, cmd, stdin, bufio.NewScanner(stdout)}
	killAtEnd(t, cmd)
	return a
}

func (a *app) kill() {
	if a.cmd.ProcessState == nil {
		a.cmd.Process.Kill()
		a.cmd.Wait()
	}
}

// ask sends the application a command and returns its answer.
func (a *app) ask(line string) string {
	a.t.Helper()
	fmt.Fprintln(a.stdin, line)
	if !a.lines.Scan() {
		a.t.Fatalf("%s: the application has ended: %v", line, a.lines.Err())
	}
	return a.lines.Text()
}

// expect sends a command and checks how the answer begins.
func (a *app) expect(line, want string) (answer string) {
	a.t.Helper()
	answer = a.ask(line)
	if !strings.HasPrefix(answer, want) {
		a.t.Errorf("%s:\n got %s\nwant %s...", line, answer, want)
	}
	return answer
}

// echoConnections sends back what connections to l send, until l is closed.
func echoConnections(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go io.Copy(c, c)
	}
}
