// Package dnstest has how DNS servers of tests answer.
package dnstest

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

var errNoAnswer = errors.New("no answer")

// Answer makes the reply to a DNS query: the addresses of a name in known, NXDOMAIN for other names, and an error for
// "slow.test".
func Answer(query []byte, known map[string][]string) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	q := m.Questions[0]
	name := strings.TrimSuffix(q.Name.String(), ".")
	if name == "slow.test" {
		return nil, errNoAnswer
	}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	addrs, ok := known[name]
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addrs {
		a := netip.MustParseAddr(strings.Trim(text, "[]"))
		var body dnsmessage.ResourceBody
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			body = &dnsmessage.AResource{A: a.As4()}
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			body = &dnsmessage.AAAAResource{AAAA: a.As16()}
		default:
			continue
		}
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60}, Body: body,
		})
	}
	return m.Pack()
}
