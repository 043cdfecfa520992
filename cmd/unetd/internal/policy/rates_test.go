//go:build linux

package policy

import (
	"testing"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// ratesIn are the rates of the first rule of a policy.
func ratesIn(t *testing.T, text string) endpoint.Rates {
	t.Helper()
	return parse(t, text).Rules[0].Rates
}

// The rates of a rule.
func TestParseRates(t *testing.T) {
	for text, want := range map[string]endpoint.Rates{
		"rates: {endpoint: {packets: 100000/s, bits: 1Gbit/s}}":             {Endpoint: endpoint.Rate{Packets: 100_000, PacketBurst: 1000, Bytes: 125e6, ByteBurst: 1_250_000}},
		"rates: {endpoint: {packets: 100000/s, bits: 1Gbit/s, burst: 2ms}}": {Endpoint: endpoint.Rate{Packets: 100_000, PacketBurst: 200, Bytes: 125e6, ByteBurst: 250_000}},
		"rates: {user: {packets: 5/s}}":                                     {User: endpoint.Rate{Packets: 5, PacketBurst: 64}},
		"rates: {user: {bits: 64 kbit/s, packets: unlimited}}":              {User: endpoint.Rate{Bytes: 8000, ByteBurst: 128 << 10}},
		"rates: {user: {bits: 400Gbit/s, packets: 1000000000/s, burst: 100ms}}": {
			User: endpoint.Rate{Bytes: 50e9, ByteBurst: 5e9, Packets: 1e9, PacketBurst: 1e8}},
		"rates: {endpoint: {packets: 200/s}, user: {packets: 300/s}}": {Endpoint: endpoint.Rate{Packets: 200, PacketBurst: 64}, User: endpoint.Rate{Packets: 300, PacketBurst: 64}},
		"rates: unlimited":  {},
		"rates: {user: {}}": {},
		"operator: true":    {},
		"trusted: true\n    queues: []\n    rates: {user: {packets: 5/s}}": {User: endpoint.Rate{Packets: 5, PacketBurst: 64}},
	} {
		if got := ratesIn(t, rule(complete, text)); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
	if most := rateWith(maxPackets, maxBits, maxBurst); most.ByteBurst > bpf.MaxBucket || most.PacketBurst > bpf.MaxBucket {
		t.Errorf("%+v is more than a bucket holds", most)
	}
}

// The rates at the top of the file are for the rules that have none, also if they follow the rules.
func TestDefaultRates(t *testing.T) {
	defaults := "rates: {user: {packets: 500/s}}\n"
	want := endpoint.Rates{User: endpoint.Rate{Packets: 500, PacketBurst: 64}}
	for text, want := range map[string]endpoint.Rates{
		defaults + rule(complete):                                        want,
		rule(complete) + defaults:                                        want,
		defaults + rule(complete, "trusted: true", "queues: []"):         want,
		defaults + rule(complete, "trusted: true"):                       {},
		defaults + rule(complete, "rates: unlimited"):                    {},
		defaults + rule(complete, "rates: {endpoint: {packets: 700/s}}"): {Endpoint: endpoint.Rate{Packets: 700, PacketBurst: 64}},
		defaults + rule("operator: true"):                                {},
		defaults + rule("endpoints: 0"):                                  {},
	} {
		if got := ratesIn(t, text); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

// RatesOf and the terms of an endpoint have the rates of the rule for the user.
func TestRatesOf(t *testing.T) {
	a := &Authority{Source: &Source{}, Interface: "eth0"}
	a.Source.current.Store(parse(t, rule(complete, "rates: {user: {packets: 500/s}}")))
	alice, bob := mux.Owner{UID: 1001}, mux.Owner{UID: 1002}
	want := endpoint.Rates{User: endpoint.Rate{Packets: 500, PacketBurst: 64}}
	if got, ok := a.RatesOf(alice); got != want || !ok {
		t.Errorf("%+v, %v", got, ok)
	}
	if terms, err := a.Open(alice, endpoint.Request{}); err != nil || terms.Rates != want {
		t.Errorf("%+v, %v", terms, err)
	}
	if got, ok := a.RatesOf(bob); got != (endpoint.Rates{}) || ok {
		t.Errorf("without a rule: %+v, %v", got, ok)
	}
}

// A rate as text.
func TestWriteRate(t *testing.T) {
	for want, r := range map[string]endpoint.Rate{
		"unlimited": {},
		"100000/s (burst 1000), 1Gbit/s (burst 1250000 bytes)": {Packets: 100_000, PacketBurst: 1000, Bytes: 125e6, ByteBurst: 1_250_000},
		"2500Mbit/s (burst 64 bytes)":                          {Bytes: 312_500_000, ByteBurst: 64},
		"24bit/s (burst 1 bytes)":                              {Bytes: 3, ByteBurst: 1},
	} {
		if got := Rate(r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
