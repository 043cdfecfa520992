//go:build linux

package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cilium/ebpf/perf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
)

// Config says what is captured and where it is written.
type Config struct {
	BPFFS     string // BPF file system in which unetd pins its programs
	Interface string // capture all endpoints of it; "": capture Endpoint
	Endpoint  uint64
	Kernel    bool   // also frames from the wire that no tag claims, which are the kernel's
	Count     uint64 // stop after that many packets; 0: do not
	Snaplen   int    // bytes of a frame that are captured; 0: MaxSnap
	File      string // pcapng; "-": to Stdout; "": lines of text to Stdout

	Application string // in the file
	Stdout      *os.File
	Stderr      io.Writer // messages at the beginning and the end
}

// Times of the loop of Run.
const (
	tick   = 50 * time.Millisecond // between two looks at packets that are held back
	lookAt = time.Second           // between two looks whether the endpoint is still there
)

// Result counts the packets of a capture.
type Result struct {
	Captured uint64 // written
	Lost     uint64 // the perf buffer was full
}

func (r Result) String() string {
	return fmt.Sprintf("%s captured, %d lost because the buffer was full", plural(r.Captured), r.Lost)
}

func plural(n uint64) string {
	if n == 1 {
		return "1 packet"
	}
	return fmt.Sprintf("%d packets", n)
}

// sink takes packets, and writes them at Flush at the latest.
type sink interface {
	write(*Packet) error
	Flush() error
}

// Run captures until ctx ends, Count packets are written, the endpoint ends, or the reader of Stdout closes it.
// Then nothing is attached.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Snaplen <= 0 || cfg.Snaplen > MaxSnap {
		cfg.Snaplen = MaxSnap
	}
	t, err := find(cfg.BPFFS, cfg.Interface, cfg.Endpoint)
	if err != nil {
		return err
	}
	defer t.Close()
	tr, err := attach(t, cfg.Snaplen, cfg.Kernel)
	if err != nil {
		return err // before a file is truncated
	}
	out, closeOut, err := cfg.open()
	if err != nil {
		return errors.Join(err, tr.close())
	}
	cfg.announce(t)
	r := &run{cfg: cfg, t: t, tr: tr, out: out, decoder: newDecoder(t, cfg.Snaplen), window: newWindow()}
	err = r.loop(ctx)
	if err = errors.Join(err, tr.close(), closeOut()); errors.Is(err, unix.EPIPE) {
		err = nil // the reader has seen enough
	}
	fmt.Fprintln(cfg.Stderr, r.result)
	return err
}

// open opens the output.
func (cfg *Config) open() (sink, func() error, error) {
	file, closeFile := cfg.Stdout, func() error { return nil }
	if cfg.File != "" && cfg.File != "-" {
		f, err := os.OpenFile(cfg.File, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return nil, nil, err
		}
		file, closeFile = f, f.Close
	}
	w := bufio.NewWriterSize(file, 1<<16)
	if cfg.File == "" {
		return lines{w}, closeFile, nil
	}
	p, err := newPcapng(w, cfg.Application, cfg.Snaplen)
	if err == nil {
		err = w.Flush() // a reader of a pipe gets the head at once
	}
	if err != nil {
		return nil, nil, errors.Join(err, closeFile())
	}
	return p, closeFile, nil
}

// announce says what is captured, and what cannot be.
func (cfg *Config) announce(t *target) {
	what := "all endpoints of " + t.name
	if !t.all {
		what = fmt.Sprintf("endpoint %d of %s", t.endpoint, t.name)
	}
	if cfg.Kernel {
		what += " and frames for the kernel"
	}
	fmt.Fprintf(cfg.Stderr, "capturing %s, snapshot length %d bytes\n", what, cfg.Snaplen)
	if t.onQueue() {
		fmt.Fprintf(cfg.Stderr, "warning: endpoint %d is on a queue: what it sends passes no program and is not captured\n", t.endpoint)
	}
}

// unread reports whether the reader of a pipe has closed it. Without that, only the next packet shows it.
func unread(file *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(file.Fd())}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&unix.POLLERR != 0
}

// run is a running capture.
type run struct {
	cfg     Config
	t       *target
	tr      *tracing
	out     sink
	decoder *decoder
	window  *window
	result  Result
}

// errEnough ends the loop without an error.
var errEnough = errors.New("enough packets")

func (r *run) loop(ctx context.Context) error {
	looked := time.Now()
	piped := r.cfg.File == "" || r.cfg.File == "-"
	for ctx.Err() == nil && !(piped && unread(r.cfg.Stdout)) {
		err := r.read(time.Now().Add(tick))
		if err == nil {
			err = r.write(monotonic())
		}
		if errors.Is(err, errEnough) {
			return nil
		}
		if err != nil {
			return err
		}
		if time.Since(looked) > lookAt {
			looked = time.Now()
			if why := r.t.gone(); why != "" {
				fmt.Fprintln(r.cfg.Stderr, why)
				break
			}
		}
	}
	// What was captured before the end.
	if err := r.tr.detach(); err != nil {
		return err
	}
	err := r.tr.reader.Flush()
	for err == nil {
		err = r.read(time.Time{})
	}
	if errors.Is(err, perf.ErrFlushed) {
		err = r.write(^uint64(0))
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return err
}

// read reads records until a time, or until there are many.
func (r *run) read(until time.Time) error {
	r.tr.reader.SetDeadline(until)
	var record perf.Record
	for range windowLimit / 4 {
		err := r.tr.reader.ReadInto(&record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		r.result.Lost += record.LostSamples
		if record.LostSamples > 0 {
			continue
		}
		p, err := r.decoder.decode(record.RawSample, record.CPU)
		if err != nil {
			return err
		}
		if r.concerns(&p) {
			r.window.add(p)
		}
	}
	return nil
}

// concerns reports whether a packet is of what is captured. Records of the uplink do not say whose frame it is.
func (r *run) concerns(p *Packet) bool {
	switch p.place {
	case bpf.CaptureUnetPlaceUNET_PLACE_UPLINK, bpf.CaptureUnetPlaceUNET_PLACE_LO:
	default:
		return true
	}
	owner, claimed := r.t.claims(p.Data)
	if p.counter == noCounter {
		return !claimed // --kernel
	}
	return r.t.all || claimed && r.t.isOwner(owner)
}

// write writes the packets that were captured some time before now.
func (r *run) write(now uint64) error {
	for _, p := range r.window.take(now) {
		if err := r.out.write(&p); err != nil {
			return err
		}
		r.result.Captured++
		if r.result.Captured == r.cfg.Count {
			if err := r.out.Flush(); err != nil {
				return err
			}
			return errEnough
		}
	}
	return r.out.Flush()
}
