package tcp

import (
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/test/internal/wiretap"
)

// choices are the kernel's options for TCP.
type choices struct{ timestamps, sack, scaling bool }

func (c choices) String() string {
	return fmt.Sprintf("timestamps=%t,sack=%t,window_scaling=%t", c.timestamps, c.sack, c.scaling)
}

// choose sets them for connections to come.
func (s *scene) choose(t *testing.T, c choices) {
	t.Helper()
	for name, on := range map[string]bool{"tcp_timestamps": c.timestamps, "tcp_sack": c.sack, "tcp_window_scaling": c.scaling} {
		s.sysctl(t, name, map[bool]string{false: "0", true: "1"}[on])
	}
}

// allChoices are all combinations.
func allChoices() (all []choices) {
	for i := range 8 {
		all = append(all, choices{i&1 != 0, i&2 != 0, i&4 != 0})
	}
	return all
}

// agreed holds what we say was agreed on against what the kernel says, and both
// against what it was told.
func agreed(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn, c choices, mtu int) {
	t.Helper()
	theirs := info(t, kernel)
	bit := func(b uint8) bool { return theirs.Options&b != 0 }
	const timestamps, sack, scaling = 1, 2, 4 // TCPI_OPT_TIMESTAMPS and so on, linux/tcp.h
	i := ours.Info()
	if got := (choices{bit(timestamps), bit(sack), bit(scaling)}); got != c {
		t.Errorf("the kernel says that it agreed on %v", got)
	}
	if got := (choices{i.Timestamps, i.SACK, i.WindowScale}); got != c {
		t.Errorf("we say that we agreed on %v", got)
	}
	if c.scaling {
		if send, receive := scales(theirs); send != i.ReceiveScale || receive != i.SendScale {
			t.Errorf("scales: the kernel sends by %d and receives by %d, we receive by %d and send by %d", send, receive, i.ReceiveScale, i.SendScale)
		}
	} else if i.SendScale != 0 || i.ReceiveScale != 0 {
		t.Errorf("scales %d and %d without an agreement", i.SendScale, i.ReceiveScale)
	}
	want := mtu - 40
	if c.timestamps {
		want -= 12
	}
	if i.SendMSS != want || int(theirs.Snd_mss) != want {
		t.Errorf("we send %d bytes in a segment, the kernel %d, want %d", i.SendMSS, theirs.Snd_mss, want)
	}
	if theirs.State != unix.BPF_TCP_ESTABLISHED {
		t.Errorf("the kernel's state is %d", theirs.State)
	}
}

// sizes that matter wherever segments are cut.
func exchangeSizes(t *testing.T, s *scene, c choices, mtu int) {
	s.choose(t, c)
	for _, size := range []int{1, mtu - 52, mtu - 39, 1 << 20} {
		s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
			agreed(t, ours, kernel, c, mtu)
			must(t, exchange(ours, kernel, size, pieces{64 << 10, 64 << 10}))
		})
	}
}

// Whatever options the kernel has, over whatever cable and attachment.
func TestOptions(t *testing.T) {
	s := openScene(t, config{})
	for _, c := range allChoices() {
		t.Run(c.String(), func(t *testing.T) { exchangeSizes(t, s, c, 1500) })
	}
}

// frameMTU is the longest packet that a frame of the segment takes, if it has 2,048
// bytes.
const frameMTU = 2048 - 256 - 6 - 14

func TestCables(t *testing.T) {
	on, off := true, false
	attachments := []struct {
		name string
		config
	}{
		{"port", config{}},
		{"untrusted", config{untrusted: true}},
		{"queue", config{attach: endpoint.AttachQueue}},
	}
	for _, a := range attachments {
		for _, mtu := range []int{1500, 9000} {
			for _, offloads := range []*bool{&on, &off} {
				t.Run(fmt.Sprintf("%s/mtu=%d,offloads=%t", a.name, mtu, *offloads), func(t *testing.T) {
					c := a.config
					path := mtu
					if a.untrusted {
						path = min(mtu, frameMTU)
					}
					c.mtu, c.offloads = mtu, offloads
					c.check = func(t *testing.T, j *wiretap.Judge) {
						if j.Longest != path-40 { // also of more frames than one
							t.Errorf("the longest segment of ours has %d bytes of text, want %d", j.Longest, path-40)
						}
					}
					s := openScene(t, c)
					for _, c := range []choices{{}, {true, true, true}} {
						t.Run(c.String(), func(t *testing.T) { exchangeSizes(t, s, c, path) })
					}
				})
			}
		}
	}
}
