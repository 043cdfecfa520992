package memlink_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// panics returns what f panics with.
func panics(f func()) (message string) {
	defer func() {
		if r := recover(); r != nil {
			message = r.(string)
		}
	}()
	f()
	return ""
}

func TestFrameOwnership(t *testing.T) {
	a, b := memlink.Pair(memlink.Config{FrameCount: 8, TxSize: 2})
	f, ok := a.Reserve(0)
	if !ok {
		t.Fatal("no frame")
	}
	if err := a.Audit(); err == nil {
		t.Error("the audit does not report the frame")
	}
	f.Data = append(f.Data[:0], "hello"...)
	if !a.Send(f) {
		t.Fatal("no room")
	}
	other, _ := a.Reserve(0)
	for what, misuse := range map[string]func(){
		"sent twice":           func() { a.Send(f) },
		"cancelled while sent": func() { a.Cancel(f) },
		"not borrowed":         func() { a.Return(other) },
		"of another link":      func() { b.Return(f) },
		"unknown":              func() { a.Return(stack.Frame{ID: 8}) },
	} {
		if m := panics(misuse); !strings.HasPrefix(m, "BUG:") {
			t.Errorf("%s: %q", what, m)
		}
	}
	a.Cancel(other)
	if b.Pending() {
		t.Error("the peer has the frame before Flush")
	}
	if err := a.Flush(); err != nil || !b.Pending() {
		t.Errorf("flush: %v", err)
	}
	var in [4]stack.Frame
	if n := b.Borrow(in[:]); n != 1 || string(in[0].Data) != "hello" || b.Pending() {
		t.Errorf("%d frames, %q", n, in[0].Data)
	}
	if m := panics(func() { b.Cancel(in[0]) }); !strings.HasPrefix(m, "BUG:") {
		t.Errorf("cancelled, not reserved: %q", m)
	}
	b.Return(in[0])
	if m := panics(func() { b.Return(in[0]) }); !strings.HasPrefix(m, "BUG:") {
		t.Errorf("returned twice: %q", m)
	}
	if err := errors.Join(a.Audit(), b.Audit()); err != nil {
		t.Error(err)
	}
}

func TestQueuesAreBounded(t *testing.T) {
	a, b := memlink.Pair(memlink.Config{FrameCount: 8, TxSize: 2})
	send := func() bool {
		f, ok := a.Reserve(0)
		if ok && !a.Send(f) {
			a.Cancel(f)
			ok = false
		}
		return ok
	}
	for i := range 3 {
		if got := send(); got != (i < 2) {
			t.Errorf("send %d: %v", i, got)
		}
	}
	for range 5 { // the peer has 4 frames to fill, and reads none
		a.Flush()
		send()
	}
	a.Flush()
	if b.Lost() != 3 {
		t.Errorf("%d lost, want 3", b.Lost())
	}
	a.Filter(func([]byte) bool { return false })
	send()
	a.Flush()
	if a.Lost() != 1 || b.Lost() != 3 {
		t.Errorf("%d and %d lost", a.Lost(), b.Lost())
	}
	a.Stick(true)
	send()
	send()
	a.Flush()
	if send() {
		t.Error("a link that moves no frames has taken a third one")
	}
}

func TestRecvDoesNotSplitPackets(t *testing.T) {
	a, _ := memlink.Pair(memlink.Config{})
	part := func(s string, more bool) stack.Frame {
		return stack.Frame{Data: []byte(s), More: more, GSOSize: 9}
	}
	a.Inject(part("1", false), part("2a", true), part("2b", true), part("2c", false), part("3", false))
	frames := make([]stack.Frame, 3)
	var got []string
	for a.Pending() {
		n := a.Borrow(frames)
		var batch string
		for _, f := range frames[:n] {
			batch += string(f.Data)
			if f.GSOSize != 9 {
				t.Error("the GSO size is lost")
			}
			a.Return(f)
		}
		got = append(got, batch)
	}
	if s := strings.Join(got, " "); s != "1 2a2b2c 3" {
		t.Errorf("batches %q", s)
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memlink.Pair(memlink.Config{})
		slept := func(until time.Time) (time.Duration, error) {
			start := time.Now()
			err := a.Sleep(until, false)
			return time.Since(start), err
		}
		if d, err := slept(time.Now().Add(time.Second)); d != time.Second || err != nil {
			t.Errorf("until the deadline: slept %v, %v", d, err)
		}
		time.AfterFunc(time.Second, a.Wake)
		if d, err := slept(time.Time{}); d != time.Second || err != nil {
			t.Errorf("until Wake: slept %v, %v", d, err)
		}
		a.Wake()
		if d, _ := slept(time.Time{}); d != 0 {
			t.Errorf("after Wake: slept %v", d)
		}
		time.AfterFunc(time.Second, func() {
			f, _ := b.Reserve(0)
			b.Send(f)
			b.Flush()
		})
		if d, _ := slept(time.Now().Add(time.Hour)); d != time.Second || !a.Pending() {
			t.Errorf("until a frame: slept %v", d)
		}
		if d, _ := slept(time.Time{}); d != 0 {
			t.Errorf("with a frame that waits: slept %v", d)
		}
		failure := errors.New("the link has failed")
		a.Break(failure)
		if _, err := slept(time.Time{}); err != failure || a.Flush() != failure {
			t.Errorf("after Break: %v", err)
		}
	})
}
