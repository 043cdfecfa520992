package wire

import "testing"

// The options of a header are checked (RFC 791, section 3.1). Source routes are refused.
func TestIPv4OptionChecks(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []byte
		want    error
		at      uint8
	}{
		{"end of list, and anything", []byte{0, 9, 99, 131}, nil, 0},
		{"no operation", []byte{1, 1, 1, 1}, nil, 0},
		{"unknown", []byte{0x9e, 4, 0, 0}, nil, 0},
		{"of two octets", []byte{0x9e, 2, 0x9e, 2}, nil, 0},
		{"record route", []byte{7, 7, 4, 0, 0, 0, 0, 0}, nil, 0},
		{"loose source route", []byte{131, 7, 4, 0, 0, 0, 0, 0}, ErrDiscarded, 0},
		{"strict source route", []byte{1, 137, 7, 4, 0, 0, 0, 0}, ErrDiscarded, 0},
		{"longer than the header", []byte{1, 0x9e, 4, 0}, ErrParameterProblem, 21},
		{"of one octet", []byte{0x9e, 1, 0, 0}, ErrParameterProblem, 20},
		{"of none", []byte{0x9e, 0, 0, 0}, ErrParameterProblem, 20},
		{"without its length", []byte{1, 1, 1, 0x9e}, ErrParameterProblem, 23},
		{"the most", append(make([]byte, 0, 40), []byte{0x9e, 40, 39: 0}...), nil, 0},
	} {
		b := make([]byte, 20+len(c.options)+3)
		PutIPv4(b, IPv4Fields{TOS: 7, TTL: 1, Protocol: ProtocolUDP, Fragment: 0x2005, Src: [4]byte{10, 0, 0, 1}, Dst: [4]byte{10, 0, 0, 2}})
		b[0], b[3] = 0x45+byte(len(c.options)/4), byte(len(b))
		copy(b[20:], c.options)
		head := b[:20+len(c.options)]
		head[10], head[11] = 0, 0
		sum := ^naiveSum(head, 0)
		head[10], head[11] = byte(sum>>8), byte(sum)
		p := IPv4{ProblemAt: 99}
		if err := p.Parse(b); err != c.want || p.ProblemAt != c.at {
			t.Errorf("%s: %v at %d, want %v at %d", c.name, err, p.ProblemAt, c.want, c.at)
		}
		if p.Src != [4]byte{10, 0, 0, 1} || p.Dst != [4]byte{10, 0, 0, 2} || p.TOS != 7 || p.Protocol != ProtocolUDP || p.Fragment != 0x2005 || len(p.Packet) != len(b) || len(p.Payload) != 3 {
			t.Errorf("%s: %+v", c.name, p)
		}
		head[10]++
		if err := p.Parse(b); err != ErrChecksum {
			t.Errorf("%s: a wrong checksum: %v", c.name, err)
		}
	}
}
