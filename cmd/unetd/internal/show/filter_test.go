//go:build linux

package show

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// Which of some sockets and tags a filter shows. The language is that of ss(8).
func TestFilter(t *testing.T) {
	at := netip.MustParseAddrPort
	e := &endpoint.Status{Info: endpoint.Info{ID: 7, UID: 1000, PID: 4711}}
	sockets := map[string]*endpoint.Socket{
		"web":    {Protocol: "tcp", State: "listening", Local: at("10.0.0.1:80")},
		"web6":   {Protocol: "tcp", State: "listening", Local: at("[::]:443")},
		"client": {Protocol: "tcp", State: "established", Local: at("10.0.0.1:50000"), Remote: at("10.1.2.3:443")},
		"peer6":  {Protocol: "tcp", State: "close-wait", Local: at("[fd00::1]:80"), Remote: at("[fd00::2]:1024")},
		"udp":    {Protocol: "udp", State: "unconnected", Local: at("10.0.0.1:53")},
	}
	tag, block, whole, message := endpoint.TCPTag(at("10.0.0.1:8080")), endpoint.TCPTag(at("10.0.0.1:49984")).AsBlock(), endpoint.AddrTag(netip.MustParseAddr("10.0.0.9")), endpoint.MessageTag(7)
	tags := map[string]*endpoint.Tag{"tag": &tag, "block": &block, "whole": &whole, "message": &message}
	names := []string{"web", "web6", "client", "peer6", "udp", "tag", "block", "whole", "message"}
	all := strings.Join(names, " ")
	for filter, want := range map[string]string{
		"":                                  all,
		"state established":                 "client",
		"state listening":                   "web web6",
		"state connected":                   "client peer6",
		"state all":                         all,
		"exclude listening":                 "client peer6 udp tag block whole message",
		"sport = :80":                       "web peer6 whole",
		"sport :80":                         "web peer6 whole",
		"sport eq 80 and src fd00::/64":     "peer6",
		"sport = :http":                     "web peer6 whole",
		"sport = :50000":                    "client block whole",
		"sport > 50000":                     "block whole",
		"sport<=:53":                        "udp whole",
		"dport = :443":                      "client",
		"dport >= 1024":                     "peer6",
		"dport != :443":                     "peer6",
		"dst 10.0.0.0/8":                    "client",
		"dst != 10.0.0.0/8":                 "peer6",
		"dst 10.1.2.3:443":                  "client",
		"dst 10.1.2.3:80":                   "",
		"dst [fd00::2]:1024":                "peer6",
		"dst fd00::2":                       "peer6",
		"dst [fd00::]/64":                   "peer6",
		"dst *:443":                         "client",
		"src :80":                           "web peer6 whole",
		"src 10.0.0.9":                      "whole",
		"src = 10.0.0.1":                    "web client udp tag block",
		"not sport = :80":                   "web6 client udp tag block message",
		"! state established and dport > 0": "peer6",
		"state listening or state close-wait and dst fd00::/16":   "web web6 peer6",
		"(state listening or state close-wait) and src fd00::/16": "peer6",
		"(sport=:80|sport=:443)&!(src fd00::/16)":                 "web web6 whole",
		"state established dport = :443":                          "client",
		"endpoint 7 state close-wait":                             "peer6",
		"endpoint != 7":                                           "",
		"endpoint 8 or pid 4711 and user alice and sport = :53":   "udp whole",
		"user 1000 and dport = :443":                              "client",
		"user bob":                                                "",
		"state time-wait":                                         "",
	} {
		f, err := ParseFilter(filter)
		if err != nil {
			t.Errorf("%s: %v", filter, err)
			continue
		}
		var got []string
		for _, name := range names {
			if f(&row{endpoint: e, user: "alice", socket: sockets[name], tag: tags[name]}) {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: shows %q, want %q", filter, got, want)
		}
	}
}

// The errors of filters that are not correct are one line.
func TestWrongFilters(t *testing.T) {
	for filter, want := range map[string]string{
		"state":                  "filter: it ends where a state should follow (word 2)",
		"state open":             `filter: unknown state "open": want `,
		"sport = :99999":         `filter: "99999" is not a port: want a number to 65535 or the name of a service (word 3)`,
		"sport = :":              `filter: "" is not a port`,
		"dst 10.0.0.0/33":        `filter: "10.0.0.0/33" is not an address: want `,
		"dst < 10.0.0.1":         "filter: < does not apply here: want = or != (word 2)",
		"dst [fd00::1":           `filter: "[fd00::1" is not an address`,
		"( state listening":      "filter: a parenthesis is not closed (word 4)",
		"state listening )":      `filter: unexpected ")" (word 3)`,
		"and":                    `filter: unknown word "and": want `,
		"not":                    "filter: it ends where an expression should follow",
		"listening":              `filter: unknown word "listening": want `,
		"endpoint unet7":         `filter: "unet7" is not a number (word 2)`,
		strings.Repeat("(", 200): "filter: more than 100 expressions inside one another",
	} {
		if _, err := ParseFilter(filter); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", filter, err, want)
		}
	}
}

// FuzzFilter: no text causes a panic of the parser or of the filter. The words of a filter that is accepted,
// separated by spaces, are accepted too.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{"state established", "sport=:80|!(dst [fd00::1]:80)", "src 10.0.0.0/8:*", "((", "dst [", "dst [::1]/", "not not not", "endpoint 18446744073709551616", "user"} {
		f.Add(s)
	}
	e := &endpoint.Status{}
	tag := endpoint.MessageTag(1)
	s := &endpoint.Socket{Local: netip.MustParseAddrPort("[fe80::1%eth0]:1")}
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := ParseFilter(text)
		if err != nil {
			return
		}
		for _, r := range []row{{endpoint: e}, {endpoint: e, tag: &tag}, {endpoint: e, socket: s}} {
			filter(&r)
		}
		if _, err := ParseFilter(strings.Join(filterWords(text), " ")); err != nil {
			t.Errorf("%q by its words: %v", text, err)
		}
	})
}
