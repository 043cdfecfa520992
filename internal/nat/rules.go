//go:build linux

package nat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rules are the translating chains of nftables. Other chains that they jump to are read when
// needed. The messages are those of linux/netfilter/nf_tables.h.
type rules struct {
	bases []base
	read  map[chain][][]expression
	sets  map[chain][]element // by family, table and name of the set; nil: it cannot be read
	err   error               // the first failure to read a chain
}

// chain names a chain, or a set.
type chain struct {
	family      byte // NFPROTO_IPV4, NFPROTO_IPV6 or NFPROTO_INET
	table, name string
}

func (c chain) String() string {
	family := map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}[c.family]
	return fmt.Sprintf("chain %s of table %s %s", c.name, family, c.table)
}

// base is a chain with a nat hook for arriving or leaving packets.
type base struct {
	chain
	arrives bool // prerouting; false: postrouting
}

// expression is one step of a rule.
type expression struct {
	name  string
	attrs map[uint16][]byte
}

// number is the value of an attribute; 0: there is none.
func (e expression) number(attr uint16) uint32 { return number(e.attrs[attr]) }

func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// data is an attribute with the value of a register; nil: there is none, or it is a verdict.
func (e expression) data(attr uint16) []byte { return nested(e.attrs[attr], unix.NFTA_DATA_VALUE) }

// nested returns the value of attribute attr of the attributes in b; nil: there is none.
func nested(b []byte, attr uint16) []byte {
	attrs, err := attributes(b)
	if err != nil {
		return nil
	}
	return attrs[attr]
}

func text(b []byte) string { return unix.ByteSliceToString(b) }

// element is an element of a set or map of nftables.
type element struct {
	key     []byte // nil: catch-all
	last    []byte // last key of an interval of concatenations that begins with key; nil: no such interval
	end     bool   // key is the first one after an interval
	verdict []byte // attributes; nil: none
}

// dump requests a list from nftables. f is called with the attributes of each message.
func dump(message int, family byte, attrs []*nl.RtAttr, f func(family byte, attrs map[uint16][]byte) error) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|message, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	for _, a := range attrs {
		req.AddData(a)
	}
	const tries = 10 // a dump is interrupted when rules change
	for i := 0; ; i++ {
		var malformed error
		err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
			if len(msg) < nl.SizeofNfgenmsg {
				malformed = errors.New("short message")
				return false
			}
			attrs, err := attributes(msg[nl.SizeofNfgenmsg:])
			if err == nil {
				err = f(msg[0], attrs)
			}
			malformed = err
			return err == nil
		})
		if i < tries && (errors.Is(err, netlink.ErrDumpInterrupted) || errors.Is(err, unix.EINTR)) {
			continue
		}
		return errors.Join(err, malformed)
	}
}

// readRules lists the chains. A kernel without nftables has none.
func readRules() (*rules, error) {
	r := &rules{read: map[chain][][]expression{}, sets: map[chain][]element{}}
	err := dump(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil, func(family byte, attrs map[uint16][]byte) error {
		hook := nested(attrs[unix.NFTA_CHAIN_HOOK], unix.NFTA_HOOK_HOOKNUM)
		if text(attrs[unix.NFTA_CHAIN_TYPE]) != "nat" || hook == nil {
			return nil
		}
		switch number(hook) {
		case unix.NF_INET_PRE_ROUTING, unix.NF_INET_POST_ROUTING:
			b := base{chain{family, text(attrs[unix.NFTA_CHAIN_TABLE]), text(attrs[unix.NFTA_CHAIN_NAME])}, number(hook) == unix.NF_INET_PRE_ROUTING}
			if !slices.Contains(r.bases, b) { // an interrupted dump is repeated
				r.bases = append(r.bases, b)
			}
		}
		return nil
	})
	if err != nil && !unsupported(err) {
		return nil, fmt.Errorf("chains of nftables: %w", err)
	}
	return r, nil
}

// of returns the rules of a chain. It reads them at the first call for the chain.
func (r *rules) of(c chain) [][]expression {
	list, known := r.read[c]
	if !known {
		attrs := []*nl.RtAttr{nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(c.table)), nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated(c.name))}
		err := dump(unix.NFT_MSG_GETRULE, c.family, attrs, func(_ byte, attrs map[uint16][]byte) error {
			rule, err := expressions(attrs[unix.NFTA_RULE_EXPRESSIONS])
			list = append(list, rule)
			return err
		})
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("rules of %v: %w", c, err)
		}
		r.read[c] = list
	}
	return list
}

func expressions(b []byte) (list []expression, err error) {
	elements, err := nl.ParseRouteAttr(b)
	for _, el := range elements {
		attrs, err := attributes(el.Value)
		if err != nil {
			return nil, err
		}
		data, err := attributes(attrs[unix.NFTA_EXPR_DATA])
		if err != nil {
			return nil, err
		}
		list = append(list, expression{text(attrs[unix.NFTA_EXPR_NAME]), data})
	}
	return list, err
}

const keyEnd = 10 // NFTA_SET_ELEM_KEY_END

// elements returns the elements of a set or map; nil: it cannot be read.
func (r *rules) elements(c chain) []element {
	list, known := r.sets[c]
	if !known {
		list = []element{}
		attrs := []*nl.RtAttr{nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(c.table)), nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(c.name))}
		err := dump(unix.NFT_MSG_GETSETELEM, c.family, attrs, func(_ byte, attrs map[uint16][]byte) error {
			elements, err := nl.ParseRouteAttr(attrs[unix.NFTA_SET_ELEM_LIST_ELEMENTS])
			if err != nil {
				return err
			}
			for _, el := range elements {
				attrs, err := attributes(el.Value)
				if err != nil {
					return err
				}
				list = append(list, element{
					key:     nested(attrs[unix.NFTA_SET_ELEM_KEY], unix.NFTA_DATA_VALUE),
					last:    nested(attrs[keyEnd], unix.NFTA_DATA_VALUE),
					end:     number(attrs[unix.NFTA_SET_ELEM_FLAGS])&unix.NFT_SET_ELEM_INTERVAL_END != 0,
					verdict: nested(attrs[unix.NFTA_SET_ELEM_DATA], unix.NFTA_DATA_VERDICT),
				})
			}
			return nil
		})
		if err != nil {
			list = nil
		}
		r.sets[c] = list
	}
	return list
}

// maxSteps limits the number of rules that are evaluated for one address. Chains that jump to one
// another can multiply a few rules.
const maxSteps = 100_000

// apply adds the ports of an address that rules use or may use. shared: it is an address of the
// interface; any other address is used only by rules that name it, or that cannot be evaluated.
func (r *rules) apply(p *Ports, link Link, a netip.Addr, shared bool) {
	for _, b := range r.bases {
		if a.Is4() && b.family == unix.NFPROTO_IPV6 || a.Is6() && b.family == unix.NFPROTO_IPV4 {
			continue
		}
		w := walk{rules: r, ports: p, link: link, addr: a, shared: shared, steps: maxSteps, arrives: b.arrives}
		w.chain(b.chain, state{protocols: [protocols]bool{true, true}, ports: everyPort}, 0)
		switch {
		case r.err != nil:
			p.addUnread(fmt.Sprintf("%v, which cannot be read (%v)", b.chain, r.err))
		case w.steps <= 0:
			p.addUnread(fmt.Sprintf("%v, which leads to more rules than are evaluated", b.chain))
		}
	}
}
