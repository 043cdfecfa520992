//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/examples/rkv/kv"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/verbs"
)

// bench looks keys up by READ and over UDP, with as many clients as its flag says, and removes its
// keys.
func TestBench(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	hostA, a := lab.Open(t, pair.A)
	hostB, b := lab.Open(t, pair.B)
	ctx, cancel := context.WithCancel(t.Context())
	addr := netip.AddrPortFrom(hostA.Addr(), 7600)
	served := make(chan error)
	go func() { served <- serve(ctx, hostA, a, options{addr: addr}) }()
	defer func() {
		cancel()
		testutil.Must(t, <-served)
	}()
	var k *kv.Client
	for k == nil {
		var rejected *verbs.RejectError
		var err error
		if k, err = kv.Dial(ctx, b, addr); err != nil && !errors.As(err, &rejected) { // serve does not listen yet
			t.Fatal(err)
		}
	}
	defer k.Close()
	var out bytes.Buffer
	o := benchOptions{clients: []int{1, 3}, duration: 20 * time.Millisecond, rounds: 2, keys: 10, value: 20, json: true}
	testutil.Must(t, bench(ctx, hostB, b, addr, o, &out))
	var got struct{ Results []result }
	testutil.Must(t, json.Unmarshal(out.Bytes(), &got))
	if len(got.Results) != 4 {
		t.Fatalf("%+v", got)
	}
	for i, r := range got.Results {
		if r.Clients != []int{1, 1, 3, 3}[i] || r.By != []string{"read", "udp"}[i%2] || len(r.Rounds) != 2 || r.Median <= 0 {
			t.Errorf("%+v", r)
		}
	}
	if _, err := k.Get("bench 3", nil); err != kv.ErrNotFound {
		t.Errorf("a key of the bench: %v", err)
	}
	out.Reset()
	o.json = false
	testutil.Must(t, bench(ctx, hostB, b, addr, o, &out))
	if lines := strings.Split(out.String(), "\n"); len(lines) != 5 || !strings.HasPrefix(lines[3], "3 ") {
		t.Errorf("%s", out.String())
	}
}
