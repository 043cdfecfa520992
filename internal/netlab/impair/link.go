//go:build linux

package impair

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/netlab"
)

// Rule is what happens to the frames of one direction.
type Rule = linksim.Rule

// Direction is a direction of a link.
type Direction int

const (
	AtoB Direction = iota
	BtoA
)

// Config shapes a link. Its zero value passes everything on.
type Config struct {
	Seed       uint64
	AtoB, BtoA Rule

	// Offloads leaves the offloads of the hosts on. See the package's documentation.
	Offloads bool

	// Doze has the relay sleep until a frame is due and never spin. Frames are later by
	// some 15 µs; the hosts have the processor meanwhile.
	Doze bool

	// Spare selects frames that pass at once, unchanged, and do not enter the model.
	// It is called with each frame, from the link's thread.
	Spare func(frame []byte) bool
}

// Link joins the halves of a pair's cable. Its methods may be called from any
// goroutine.
type Link struct {
	mu         sync.Mutex
	directions [2]direction // +checklocks:mu
	start      time.Time    // the model's time 0
	spare      func([]byte) bool
	spin       time.Duration
	free       []*packet // +checklocks:mu
	closing    bool      // +checklocks:mu

	wake  int // an eventfd, to end the relay's sleep
	ended chan struct{}
	once  sync.Once
	err   error
}

// direction is the state of one direction.
type direction struct {
	model    *linksim.Link[*packet]
	in, out  *port
	last     time.Duration // arrival of the last frame
	counters Counters      // without those of the model
}

// Counters is what has happened to one direction so far.
type Counters struct {
	linksim.Counters
	Spared   uint64 // frames that Config.Spare has let pass
	Missed   uint64 // frames that were dropped before the model, because the relay was too slow
	Refused  uint64 // frames that the receiver's interface refused
	InFlight int    // copies that have not arrived yet

	Passed           uint64        // copies that were passed on
	Late, LatestLate time.Duration // how much later than the model's time they were passed on: sum and maximum
}

// maxInFlight bounds the memory of a direction, in frames.
const maxInFlight = 1 << 16

// spin is how long the relay spins before a frame is due: about what it takes to wake a
// thread.
const spin = 60 * time.Microsecond

// NewLink joins the halves of a pair's cable, which must be cut (netlab.Config.Cut).
// The caller closes the link, before the pair.
func NewLink(p *netlab.Pair, cfg Config) (*Link, error) {
	if p.Middle == nil {
		return nil, errors.New("impair: the cable of the pair is not cut")
	}
	if err := errors.Join(cfg.AtoB.Validate(), cfg.BtoA.Validate()); err != nil {
		return nil, fmt.Errorf("impair: %w", err)
	}
	l := &Link{start: time.Now(), spare: cfg.Spare, ended: make(chan struct{})}
	if !cfg.Doze {
		l.spin = spin
	}
	ports, err := openPorts(p, cfg)
	if err != nil {
		return nil, fmt.Errorf("impair: %w", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("impair: eventfd: %w", err), ports[0].close(), ports[1].close())
	}
	for i, r := range []Rule{cfg.AtoB, cfg.BtoA} {
		l.directions[i] = direction{model: linksim.NewLink[*packet](cfg.Seed+uint64(i), r), in: ports[i], out: ports[1-i]}
	}
	go l.relay()
	return l, nil
}

// openPorts opens both ends of the cut cable, that of A first.
func openPorts(p *netlab.Pair, cfg Config) (ports [2]*port, err error) {
	const super = 1 << 16 // bytes of IP in a super-frame
	if !cfg.Offloads {
		for _, h := range []*netlab.Host{p.A, p.B} {
			if err := h.Do(func() error { return netlab.SetOffloads(h.Interface, false) }); err != nil {
				return ports, err
			}
		}
	}
	err = p.Middle.Do(func() error {
		for i, name := range []string{netlab.MiddleA, netlab.MiddleB} {
			if !cfg.Offloads {
				if err := netlab.SetOffloads(name, false); err != nil {
					return err
				}
			}
			longest := super
			if !cfg.Offloads {
				if longest, err = mtu(name); err != nil {
					return err
				}
			}
			if ports[i], err = openPort(name, longest+etherHeader+vlanTag); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && ports[0] != nil {
		err = errors.Join(err, ports[0].close())
	}
	return ports, err
}

// RequireLink is [NewLink] for the length of the test.
func RequireLink(t netlab.TB, p *netlab.Pair, cfg Config) *Link {
	t.Helper()
	l, err := NewLink(p, cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Set changes the rule of a direction for the frames that arrive from now on. It panics if
// the rule is not valid.
func (l *Link) Set(d Direction, r Rule) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closing && l.takeIn() {
	}
	l.directions[d].model.Set(l.now(), r)
}

// Rule is the rule of a direction.
func (l *Link) Rule(d Direction) Rule {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.directions[d].model.Rule()
}

// Counters is what has happened in a direction so far.
func (l *Link) Counters(d Direction) Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := &l.directions[d]
	if !l.closing {
		x.counters.Missed += x.in.missed()
	}
	c := x.counters
	c.Counters, c.InFlight = x.model.Counters(), x.model.InFlight()
	return c
}

// Close ends the link; frames in flight are lost. It may be called again.
func (l *Link) Close() error {
	l.once.Do(func() {
		l.mu.Lock()
		for i := range l.directions {
			l.directions[i].counters.Missed += l.directions[i].in.missed()
		}
		l.closing = true
		l.mu.Unlock()
		_, err := unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		<-l.ended
		l.err = errors.Join(err, l.directions[AtoB].in.close(), l.directions[BtoA].in.close(), unix.Close(l.wake)) // +checklocksignore: the relay has ended
	})
	return l.err
}

// now is the model's time.
func (l *Link) now() time.Duration { return time.Since(l.start) }
