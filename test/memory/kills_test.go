//go:build linux

package memory

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

var seed = flag.Uint64("memory.seed", 0, "TestRandomKills: what defines who is killed in which order; 0: another one in each run")

// streams are a client and a server, which exchange streams of random bytes, and unetd. All three may die.
type streams struct {
	*netlab.Pair
	daemon *unetd.Daemon
	ends   map[string]*endProcess
	mark   int
}

type endProcess struct {
	*unetd.Process
	in io.WriteCloser
}

func (s *streams) start(t *testing.T, role string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", endArg, role, s.daemon.Socket)
	cmd.SysProcAttr = netlab.Bound()
	if role == "server" {
		cmd.SysProcAttr = netlab.Nobody()
	}
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	s.ends[role] = &endProcess{unetd.StartCommand(t, s.A, cmd), in}
	if role == "server" {
		s.ends[role].Await(t, "listening")
	}
}

func (s *streams) process(name string) *unetd.Process {
	if name == "unetd" {
		return s.daemon.Process
	}
	return s.ends[name].Process
}

// reach returns when a stream that was begun after now has come and gone by memory.
func (s *streams) reach(t *testing.T) {
	t.Helper()
	s.mark++
	_, err := fmt.Fprintln(s.ends["client"].in, s.mark)
	testutil.Must(t, err)
	s.ends["client"].Await(t, fmt.Sprintf("reached %d.", s.mark))
	for _, name := range everybody {
		select {
		case <-s.process(name).Done:
			t.Fatalf("%s has ended: %v", name, s.process(name).Err)
		default:
		}
	}
}

// everybody is who can die. Whoever is started needs those before it.
var everybody = []string{"unetd", "server", "client"}

// fate is what happens to one of everybody.
type fate int

const (
	lives fate = iota
	stops
	dies
)

func (f fate) String() string { return [...]string{"lives", "stops", "dies"}[f] }

// fates are what happens to everybody in one act, in each act something else.
func fates(rng *rand.Rand) (all [][3]fate) {
	always := [][3]fate{{dies, lives, lives}, {lives, dies, lives}, {lives, lives, dies}, {dies, dies, dies}}
	for i := 1; i < 27; i++ {
		all = append(all, [3]fate{fate(i / 9), fate(i / 3 % 3), fate(i % 3)})
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = append(always, all[:6]...)
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// act lets everybody have its fate at random moments, and starts again who has died.
func (s *streams) act(t *testing.T, rng *rand.Rand, f [3]fate) {
	t.Helper()
	moment := func(most time.Duration) { time.Sleep(time.Duration(rng.Int64N(int64(most)))) }
	for _, i := range rng.Perm(len(everybody)) {
		moment(30 * time.Millisecond)
		switch p := s.process(everybody[i]).Cmd.Process; f[i] {
		case stops:
			testutil.Must(t, p.Signal(syscall.SIGSTOP))
		case dies:
			testutil.Must(t, p.Kill())
		}
	}
	moment(300 * time.Millisecond)
	for i, name := range everybody {
		if f[i] == stops {
			testutil.Must(t, s.process(name).Cmd.Process.Signal(syscall.SIGCONT))
		}
	}
	for i, name := range everybody {
		if f[i] != dies {
			continue
		}
		if s.process(name).End(t); name == "unetd" {
			s.daemon.Start(t)
		} else {
			s.ends[name].in.Close()
			s.start(t, name)
		}
	}
}

// pathFiles is how many files of memory paths a process has mapped, and how many are open.
func pathFiles(t *testing.T, pid int) (mapped, open int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	testutil.Must(t, err)
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	testutil.Must(t, err)
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.Contains(target, "unet-path") {
			open++
		}
	}
	return strings.Count(string(maps), "unet-path"), open
}

// While two processes exchange streams of random bytes by memory, at random moments each of them and unetd is stopped for a while,
// or is killed and started again. Every stream is exact to the byte, or ends with an error that the death explains. Every call returns.
// After each death streams go by memory again, and in the end nothing is left.
func TestRandomKills(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-memory.seed %d", *seed)
	rng := rand.New(rand.NewPCG(*seed, 0))
	s := &streams{Pair: netlab.RequirePair(t, netlab.Config{}), ends: map[string]*endProcess{}}
	s.daemon = unetd.Serve(t, s.A, unetd.Options{})
	s.start(t, "server")
	s.start(t, "client")
	s.reach(t)
	for _, f := range fates(rng) {
		began := time.Now()
		s.act(t, rng, f)
		s.reach(t)
		t.Logf("unetd %v, the server %v, the client %v: %v", f[0], f[1], f[2], time.Since(began).Round(time.Millisecond))
	}
	// The paths that have ended are not mapped any more. Each end has mapped its memory of the present one, and the other's.
	testutil.Eventually(t, "only one path is mapped, and no descriptor is open", func() bool {
		for _, name := range everybody {
			mapped, open := pathFiles(t, s.process(name).PID())
			if want := map[bool]int{true: 0, false: 2}[name == "unetd"]; mapped != want || open != 0 {
				return false
			}
		}
		return true
	})
	// Who has finished its streams ends. If one of them hangs, it does not.
	for _, name := range []string{"client", "server"} {
		testutil.Must(t, s.ends[name].in.Close())
		testutil.Must(t, s.ends[name].End(t))
	}
	testutil.Eventually(t, "unetd has no endpoint", func() bool {
		list, err := control.Operator{Socket: s.daemon.Socket}.List(t.Context())
		testutil.Must(t, err)
		return len(list) == 0
	})
	testutil.Must(t, s.daemon.Stop(t))
	unetd.Untouched(t, s.A)
	for _, pattern := range []string{filepath.Dir(s.daemon.Socket) + "/*", s.daemon.BPFFS + "/unet/*"} {
		left, err := filepath.Glob(pattern)
		testutil.Must(t, err)
		if left = slices.DeleteFunc(left, func(name string) bool { return name == s.daemon.Policy }); len(left) > 0 {
			t.Errorf("unetd has left %q", left)
		}
	}
}
