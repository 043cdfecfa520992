//go:build linux

package main

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// An endpoint has the rates of the policy when it is opened, after the policy is read again, and when the next unetd
// has taken it over with another policy.
func TestRates(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	const first, second = "rates: {user: {packets: 300000/s}}\n", "rates: {endpoint: {packets: 100000/s, bits: 1Gbit/s, burst: 5ms}}\n"
	file := policyFile(t, first+nobodys)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	rates := func() (list []endpoint.Rates) {
		t.Helper()
		var all []endpoint.Info
		if err := json.Unmarshal([]byte(s.run(t, "list", "--json")), &all); err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			list = append(list, e.Rates)
		}
		return list
	}
	want := func(what string, want endpoint.Rates) {
		t.Helper()
		if got := rates(); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	perUser := endpoint.Rates{User: endpoint.Rate{Packets: 300_000, PacketBurst: 3000}}
	perEndpoint := endpoint.Rates{Endpoint: endpoint.Rate{Packets: 100_000, PacketBurst: 500, Bytes: 125_000_000, ByteBurst: 625_000}}
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	want("opened", perUser)
	reload := func(text string) {
		t.Helper()
		writePolicy(t, file, text)
		d.signal(syscall.SIGHUP)
		d.awaitLine("policy reloaded")
	}
	reload(second + nobodys)
	want("after a change", perEndpoint)
	if list := s.run(t, "list"); !strings.Contains(list, "  100000/s (burst 500), 1Gbit/s (burst 625000 bytes)  0 ") || !strings.Contains(list, "  RATES ") {
		t.Error(list)
	}
	reload("rules: []")
	want("without a rule", perEndpoint)
	reload(nobodys)
	want("without limits", endpoint.Rates{})
	if list := s.run(t, "list"); strings.Contains(list, "RATES") {
		t.Error(list)
	}
	reload(second + nobodys)

	d.kill()
	writePolicy(t, file, first+nobodys)
	d = s.serve(t, "--socket-mode", "0666", "--policy", file)
	testutil.Eventually(t, "the endpoint is presented, and has the rates of the new policy", func() bool {
		got := rates()
		return len(got) == 1 && got[0] == perUser
	})
	d.stop(syscall.SIGTERM)
}
