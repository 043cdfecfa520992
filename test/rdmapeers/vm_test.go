package rdmapeers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
	"github.com/unet-go/unet/test/rdmapeers/guest/agent"
)

var (
	guestAddr = netip.MustParsePrefix("10.0.0.3/24")
	guestMAC  = "02:00:00:00:00:0c"
)

// guest is a running virtual machine.
type guest struct {
	host *netlab.Host // on which its bridge is
}

// boot boots the guest on host B, whose interface becomes a port of a bridge.
func boot(t *testing.T, im *image, h *netlab.Host) *guest {
	t.Helper()
	init := buildInit(t, im)
	tap, err := bridge(h)
	must(t, err)
	defer tap.Close()
	qemu := im.command("usr/bin/qemu-system-x86_64",
		"-L", im.root+"/usr/share/qemu", "-L", im.root+"/usr/share/seabios",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "512", "-M", "q35",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", im.kernel, "-initrd", init,
		// no_timer_check: on a busy machine the kernel finds too few interrupts in its check, and panics.
		"-append", "console=ttyS0 quiet panic=-1 no_timer_check net.ifnames=0 mitigations=off GUEST_ADDR="+guestAddr.String(),
		"-netdev", "tap,id=n,fd=3",
		// The link is a wire: frames have their checksums and are as long as the MTU at most.
		"-device", "virtio-net-pci,netdev=n,romfile=,mac="+guestMAC+",csum=off,guest_csum=off,gso=off,"+
			"guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off")
	qemu.Env = append(os.Environ(), "QEMU_MODULE_DIR="+im.root+"/usr/lib/x86_64-linux-gnu/qemu")
	qemu.ExtraFiles = []*os.File{tap}
	qemu.SysProcAttr = netlab.Bound()
	start := time.Now()
	console := unetd.StartCommand(t, h, qemu)
	console.Await(t, agent.Ready)
	_, release, _ := strings.Cut(console.Output(), agent.Ready)
	t.Logf("the guest's kernel%s has booted in %.1f s", strings.TrimRight(release, "\r\n"), time.Since(start).Seconds())
	return &guest{h}
}

// buildInit builds process 1, and returns the path of the image's initrd with it.
func buildInit(t *testing.T, im *image) string {
	t.Helper()
	dir := filepath.Dir(im.initrd)
	build := exec.Command("go", "build", "-o", dir+"/init", "github.com/unet-go/unet/test/rdmapeers/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	initrd := filepath.Join(dir, "initrd")
	base, err := os.ReadFile(im.initrd)
	must(t, err)
	must(t, os.WriteFile(initrd, base, 0o644))
	f, err := os.OpenFile(initrd, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	a := &archive{w: f, has: map[string]bool{}}
	a.copy(dir+"/init", "init")
	a.end()
	must(t, errors.Join(a.err, f.Close()))
	return initrd
}

// bridge makes a bridge on h with h's interface and a tap, whose descriptor it returns. The
// address of the interface moves to the bridge. The kernel removes both with the namespace.
func bridge(h *netlab.Host) (tap *os.File, err error) {
	err = h.Do(func() error {
		uplink, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "guests", MTU: uplink.Attrs().MTU, TxQLen: -1}}
		if err := netlink.LinkAdd(br); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		t := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: "guest", TxQLen: 1000}, Mode: netlink.TUNTAP_MODE_TAP,
			NonPersist: true, Queues: 1, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
		}
		if err := netlink.LinkAdd(t); err != nil {
			return fmt.Errorf("tap: %w", err)
		}
		tap = t.Fds[0]
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: h.Addr.Addr().AsSlice(), Mask: net.CIDRMask(h.Addr.Bits(), 32)}}
		if err := netlink.AddrDel(uplink, addr); err != nil {
			return fmt.Errorf("address of %s: %w", h.Interface, err)
		}
		for _, l := range []netlink.Link{uplink, t} {
			if err := netlink.LinkSetMaster(l, br); err != nil {
				return fmt.Errorf("port of the bridge: %w", err)
			}
		}
		for _, l := range []netlink.Link{t, br} {
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		return netlink.AddrAdd(br, addr)
	})
	if err != nil && tap != nil {
		tap.Close()
	}
	return tap, err
}

// process is a program that runs in the guest.
type process struct {
	args []string
	conn net.Conn
	done chan struct{} // closed when it has ended, and err is set

	mu    sync.Mutex
	lines []string
	err   error
}

// start starts a program in the guest. It is killed at the end of the test.
func (g *guest) start(t *testing.T, args ...string) *process {
	t.Helper()
	c, err := g.host.Dial("tcp", netip.AddrPortFrom(guestAddr.Addr(), agent.Port).String())
	must(t, err)
	must(t, json.NewEncoder(c).Encode(append([]string{"/usr/bin/" + args[0]}, args[1:]...)))
	p := &process{args: args, conn: c, done: make(chan struct{})}
	go p.read()
	t.Cleanup(func() {
		c.Close()
		<-p.done
		if t.Failed() {
			t.Logf("in the guest, %s printed:\n%s", strings.Join(args, " "), p.Output())
		}
	})
	return p
}

func (p *process) read() {
	defer close(p.done)
	in := json.NewDecoder(p.conn)
	for {
		var e agent.Event
		if err := in.Decode(&e); err != nil {
			p.err = fmt.Errorf("guest: %w", err)
			return
		}
		if e.Ended {
			if e.Error != "" {
				p.err = errors.New(e.Error)
			}
			return
		}
		p.mu.Lock()
		p.lines = append(p.lines, e.Line)
		p.mu.Unlock()
	}
}

// Output is what the program has printed until now.
func (p *process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

func (p *process) ended() <-chan struct{} { return p.done }
func (p *process) failure() error         { return p.err }

func (p *process) kill(testing.TB) {
	p.conn.Close()
	<-p.done
}

// ours is a program on unet's host.
type ours struct{ *unetd.Process }

func (p ours) ended() <-chan struct{} { return p.Done }
func (p ours) failure() error         { return p.Err }
func (p ours) kill(t testing.TB)      { p.Kill(t) }

// program runs in the guest or on unet's host.
type program interface {
	ended() <-chan struct{}
	failure() error // how it has ended
	kill(testing.TB)
	Output() string
}

// lag is how long a program may take to end after its peer has.
const lag = 10 * time.Second

// end waits until a program has ended by itself, and returns how. It kills one that does not.
func end(t *testing.T, p program, within time.Duration) error {
	t.Helper()
	select {
	case <-p.ended():
		return p.failure()
	case <-time.After(within):
		p.kill(t)
		return errors.New("it does not end")
	}
}

// refusals are what clients print whose server does not listen yet: those of the guest, and ours.
var refusals = []string{"Couldn't connect to", "RDMA_CM_EVENT_REJECTED, error 8", "connection refused", "invalid service ID"}

func refused(output string) bool {
	return slices.ContainsFunc(refusals, func(s string) bool { return strings.Contains(output, s) })
}

// dial runs a client, again and again until its server listens, and returns when it has ended.
// Nothing that the guest's servers print says when they listen.
func dial(t *testing.T, server program, start func() program) (client program, err error) {
	t.Helper()
	if !unetd.Eventually(func() bool {
		client = start()
		select {
		case <-client.ended():
		case <-server.ended():
		case <-time.After(unetd.Patience):
		}
		err = end(t, client, lag)
		return err == nil || !refused(client.Output())
	}) {
		t.Fatalf("the server does not listen; it printed\n%s", server.Output())
	}
	return client, err
}
