//go:build linux

package session

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The rate of the log records of one user is limited. Records of other users are still written. Records
// that are left out are counted.
func TestRecordsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		var suppressed atomic.Uint64
		r := newRecords(&suppressed)
		lines := func() (n int) {
			n = strings.Count(out.String(), "\n")
			return n
		}
		for range 1000 {
			r.add(log, 7, "seven")
		}
		if lines() != recordsAtOnce || suppressed.Load() != 1000-recordsAtOnce {
			t.Errorf("%d lines, %d suppressed", lines(), suppressed.Load())
		}
		r.add(log, 8, "eight")
		if !strings.HasSuffix(out.String(), "msg=eight\n") {
			t.Errorf("%s", out.String())
		}
		time.Sleep(2 * recordEvery)
		out.Reset()
		for range 10 {
			r.add(log, 7, "seven")
		}
		if lines() != 2 || strings.Count(out.String(), "suppressed=936\n") != 1 {
			t.Errorf("%s", out.String())
		}
		// Many users: those without allowances of their own share one.
		out.Reset()
		for uid := range uint32(2 * recordsUsers) {
			r.add(log, 100+uid, "many")
		}
		if len(r.byUID) > recordsUsers || lines() > recordsUsers+recordsAtOnce {
			t.Errorf("%d users, %d lines", len(r.byUID), lines())
		}
		// Their allowances are free after some time.
		time.Sleep(time.Minute)
		r.add(log, 5000, "later")
		if len(r.byUID) > 3 {
			t.Errorf("%d users", len(r.byUID))
		}
	})
}
