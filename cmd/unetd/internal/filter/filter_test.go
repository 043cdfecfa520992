package filter

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// The errors of filters that are not correct name what is wrong.
func TestBadFilters(t *testing.T) {
	for text, want := range map[string]string{
		"host":                          "missing",
		"host example.com":              "names of hosts",
		"tcp port":                      "missing",
		"port 65536":                    "65535",
		"port nosuchservice":            "name of a service",
		"portrange 1-x":                 "port x",
		"icmp port 7":                   "has no ports",
		"ip port 7":                     "has no ports",
		"tcp host 10.0.0.1":             "not addresses",
		"ip host fd00::1":               "IPv6 address",
		"ip6 host 10.0.0.1":             "IPv4 address",
		"host 10.0.0":                   "net 10.0.0",
		"host 10.0.0.0/8":               "it is a network",
		"net 10.0.0.1/8":                "bits are set",
		"net 10.0.0.0/33":               "0 to 32",
		"net fd00::1/8":                 "bits of",
		"net 10.0.0.0 mask 255.0.255.0": "not known",
		"net 10.0.0.0 mask x":           "255.255.255.0",
		"ether host 10.0.0.1":           "MAC address",
		"ether":                         "says nothing",
		"ether proto 5":                 "0x600",
		"ip proto 256":                  "0 to 255",
		"arp proto 7":                   "ether proto",
		"src proto 7":                   "direction",
		"ip broadcast":                  "dst host",
		"vlan 5000":                     "4095",
		"less":                          "length in bytes",
		"gateway 10.0.0.1":              "not known here",
		"mpls":                          "not known here",
		"tcp and":                       "too early",
		"and tcp":                       "not expected",
		"tcp udp":                       "not expected",
		"(tcp":                          ") is missing",
		"tcp)":                          "not expected",
		"tcp[13":                        "] is missing",
		"tcp[0:3] = 1":                  "1, 2 or 4",
		"tcp[0] +":                      "missing",
		"tcp[0]":                        "comparison",
		"foo[0] = 1":                    "foo",
		"tcp $ udp":                     "not part of the language",
		"99999999999 = 1":               "99999999999",
		strings.Repeat("not ", 1000):    "levels",
		strings.Repeat("(", 1000):       "levels",
	} {
		if _, err := Compile(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}

// inbound and outbound, which libpcap compiles for the running kernel, and the empty filter.
func TestDirections(t *testing.T) {
	for text, want := range map[string][2]bool{"": {true, true}, " ": {true, true}, "inbound": {true, false}, "outbound": {false, true}, "not inbound or len = 3": {true, true}} {
		f, err := Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{f.Match([]byte{1, 2, 3}, 3, true), f.Match([]byte{1, 2, 3}, 3, false)}; got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// FuzzCompile: no text and no frame causes a panic, and an error is one line.
func FuzzCompile(f *testing.F) {
	frames := samples(f, rand.New(rand.NewPCG(2, 0)), 20)
	for _, e := range libpcap(f) {
		f.Add(e.text, frames[0])
	}
	f.Add("host a or b and (c[1:2] << 3 != -4)", frames[1])
	f.Fuzz(func(t *testing.T, text string, b []byte) {
		filter, err := Compile(text)
		if err == nil {
			filter.Match(b, len(b), true)
			return
		}
		if strings.Contains(err.Error(), "\n") && !strings.Contains(text, "\n") {
			t.Fatalf("more than a line: %v", err)
		}
	})
}
