package tcp

import (
	"syscall"
	"testing"
	"time"
)

// Whoever does not answer is given up after five minutes.
func TestDefaultUserTimeout(t *testing.T) {
	p := newPair(t, noOptions, Options{})
	c := p.conns[0]
	start := p.now
	c.Write(p.now, []byte("into the void"))
	for c.State() != Closed {
		for p.tabs[0].NextReady() != nil {
			c.Emit(p.now, p.buf)
		}
		p.now = max(p.now, p.tabs[0].NextDeadline())
		p.tabs[0].Expire(p.now)
		if p.now > start.add(time.Hour) {
			t.Fatal("an hour later")
		}
	}
	if after := time.Duration(p.now - start); after != 5*time.Minute || c.Err() != syscall.ETIMEDOUT {
		t.Errorf("%v after %v", c.Err(), after)
	}
}

// The window is unsigned and has 32 bits: all of them that the scale can say.
func TestLargeWindow(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want uint32
	}{{noOptions, 65535}, {Config{}, 65535 << 14}} {
		p := newPair(t, c.cfg, Options{ReceiveBuffer: maxBuffer})
		p.exchange()
		if got := p.conns[1].Info().SendWindow; got != c.want {
			t.Errorf("window %d, want %d", got, c.want)
		}
	}
}
