package testutil

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// On a machine on which each look takes long, Until waits longer.
func TestUntilCountsLooks(t *testing.T) {
	for _, busy := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			start, seen := time.Now(), 0
			if Until(func() bool { time.Sleep(busy); seen++; return false }) {
				t.Error("holds")
			}
			if waited := time.Since(start); seen != looks+1 || waited != Limit+time.Duration(seen)*busy {
				t.Errorf("%d looks in %v", seen, waited)
			}
			n := 0
			if !Until(func() bool { n++; return n == looks+1 }) {
				t.Error("does not hold")
			}
		})
	}
}

// A transfer lasts longer than Limit, since each of its steps is soon enough.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		go func() {
			for range 5 {
				time.Sleep(Limit - 1)
				if _, err := a.Write([]byte{1}); err != nil {
					t.Error(err)
				}
			}
		}()
		a.SetDeadline(time.Now().Add(Limit))
		r := Reader(b, a)
		for range 5 {
			if n, err := r.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Fatal(err)
			}
		}
		Renew(b)
		if _, err := b.Read(make([]byte, 1)); err == nil {
			t.Error("a step that never ends does")
		}
		Renew(7)
	})
}
