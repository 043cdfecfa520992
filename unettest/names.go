package unettest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// The channels that package net makes for its resolver when that is first used must not
// belong to a synctest bubble. So it is first used here.
func init() {
	r := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }}
	r.LookupHost(context.Background(), "unettest.invalid.")
}

// resolver knows the names of the hosts, and what /etc/hosts has.
func (l *LAN) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go l.serveNames(server)
		return client, nil
	}}
}

// serveNames answers queries until the client closes. They are framed as over TCP (RFC 1035,
// section 4.2.2).
func (l *LAN) serveNames(c net.Conn) {
	defer c.Close()
	for {
		size := make([]byte, 2)
		if _, err := io.ReadFull(c, size); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		answer, err := l.answer(query)
		if err != nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer has the IPv4 or the IPv6 address of a host, no records of another type, and for other names NXDOMAIN.
func (l *LAN) answer(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	if len(m.Questions) != 1 {
		return nil, errors.New("want one question")
	}
	q := m.Questions[0]
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true, RCode: dnsmessage.RCodeNameError}
	m.Answers, m.Authorities, m.Additionals = nil, nil, nil
	for _, h := range l.hosts {
		if !strings.EqualFold(q.Name.String(), h.name+".") {
			continue
		}
		m.RCode = dnsmessage.RCodeSuccess
		var body dnsmessage.ResourceBody
		switch {
		case q.Type == dnsmessage.TypeA:
			body = &dnsmessage.AResource{A: h.addr.As4()}
		case q.Type == dnsmessage.TypeAAAA && h.ipv6.IsValid():
			body = &dnsmessage.AAAAResource{AAAA: h.ipv6.As16()}
		default:
			continue
		}
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, Type: q.Type, TTL: 60}, Body: body,
		}}
	}
	return m.Pack()
}
