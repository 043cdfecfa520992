//go:build linux

package policy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/unet-go/unet/endpoint"
)

// The burst of a rate is what the rate gives in a time, but at least minPackets and minBytes: a batch of an
// application, and two of the longest frames.
const (
	defaultBurst = 10 * time.Millisecond
	minBurst     = time.Millisecond
	maxBurst     = 100 * time.Millisecond
	minPackets   = 64
	minBytes     = 128 << 10
)

// Limits of a rate, a second. The bucket of the highest one, for maxBurst, is below bpf.MaxBucket.
const (
	maxPackets = 1_000_000_000
	maxBits    = 400_000_000_000
)

// rates reads the limits of endpoints and users.
func (p *parser) rates(n *yaml.Node) (r endpoint.Rates) {
	if at := target(n); at.Kind == yaml.ScalarNode {
		if text, ok := p.scalar(n, "rates"); ok && text != "unlimited" {
			p.fail(n, "rates: %q: write {endpoint: {packets: 100000/s, bits: 1Gbit/s}}, with user: for all endpoints of a user together, or unlimited", text)
		}
		return r
	}
	p.mapping(n, "rates", []field{
		{"endpoint", func(n *yaml.Node) { r.Endpoint = p.rate(n, "the rate of an endpoint") }},
		{"user", func(n *yaml.Node) { r.User = p.rate(n, "the rate of a user") }},
	})
	return r
}

// rate reads one limit.
func (p *parser) rate(n *yaml.Node, what string) endpoint.Rate {
	var packets, bits int64
	burst := defaultBurst
	var given *yaml.Node // burst
	p.mapping(n, what, []field{
		{"packets", func(n *yaml.Node) { packets = p.limit(n, "packets", "a rate such as 100000/s", packetsOf) }},
		{"bits", func(n *yaml.Node) { bits = p.limit(n, "bits", "a rate such as 1Gbit/s, 500Mbit/s or 64kbit/s", bitsOf) }},
		{"burst", func(n *yaml.Node) { given, burst = n, p.burst(n) }},
	})
	packets, bits = max(packets, 0), max(bits, 0) // unlimited
	if given != nil && packets == 0 && bits == 0 {
		p.fail(given, "burst: there is no rate that it belongs to: write packets: or bits:, or leave burst out")
	}
	return rateWith(packets, bits, burst)
}

// rateWith is the limit for a rate of packets, one of bits, and a burst; 0: no limit.
func rateWith(packets, bits int64, burst time.Duration) (r endpoint.Rate) {
	in := func(rate, least int64) int64 { return max(rate*burst.Microseconds()/1e6, least) }
	if packets != 0 {
		r.Packets, r.PacketBurst = packets, in(packets, minPackets)
	}
	if bits != 0 {
		r.Bytes, r.ByteBurst = bits/8, in(bits/8, minBytes)
	}
	return r
}

func (p *parser) burst(n *yaml.Node) time.Duration {
	text, ok := p.scalar(n, "burst")
	if !ok {
		return defaultBurst
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minBurst || d > maxBurst {
		p.fail(n, "burst: %q: write a time from %v to %v", text, minBurst, maxBurst)
		return defaultBurst
	}
	return d
}

// packetsOf reads a rate of packets.
func packetsOf(text string) (int64, bool) {
	number, found := strings.CutSuffix(text, "/s")
	n, err := strconv.ParseUint(number, 10, 63)
	return int64(n), found && err == nil && n >= 1 && n <= maxPackets
}

// bitUnits are those of a rate, in bits, the largest first.
var bitUnits = []struct {
	name string
	bits int64
}{{"Gbit/s", 1e9}, {"Mbit/s", 1e6}, {"kbit/s", 1e3}}

// bitsOf reads a rate of bits.
func bitsOf(text string) (int64, bool) {
	for _, unit := range bitUnits {
		if number, found := strings.CutSuffix(text, unit.name); found {
			n, err := strconv.ParseUint(strings.TrimSuffix(number, " "), 10, 63)
			return int64(n) * unit.bits, err == nil && n >= 1 && n <= uint64(maxBits/unit.bits)
		}
	}
	return 0, false
}

// Rate writes a limit: 100000/s (burst 1000), 1Gbit/s (burst 1250000 bytes).
func Rate(r endpoint.Rate) string {
	var parts []string
	if r.Packets != 0 {
		parts = append(parts, fmt.Sprintf("%d/s (burst %d)", r.Packets, r.PacketBurst))
	}
	if r.Bytes != 0 {
		text := strconv.FormatInt(8*r.Bytes, 10) + "bit/s"
		for _, unit := range bitUnits {
			if n := 8 * r.Bytes; n%unit.bits == 0 {
				text = strconv.FormatInt(n/unit.bits, 10) + unit.name
				break
			}
		}
		parts = append(parts, fmt.Sprintf("%s (burst %d bytes)", text, r.ByteBurst))
	}
	if parts == nil {
		return "unlimited"
	}
	return strings.Join(parts, ", ")
}
