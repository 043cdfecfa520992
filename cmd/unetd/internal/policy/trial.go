//go:build linux

package policy

import (
	"fmt"
	"os"
	"strings"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// Trial is what would become of a tag in a request.
type Trial struct {
	Tag     endpoint.Tag
	Pattern string // of the rule, or the owned address of the request, that permits it; "" if refused
	Err     error  // what the application would get; nil: it is granted
}

// Try says which of the tags of one request a rule would grant to an owner. It knows neither what
// others have claimed nor address translation nor the addresses of hosts. An address that is left
// open may become any.
func (p *Policy) Try(r *Rule, o mux.Owner, interfaceName string, tags []endpoint.Tag) []Trial {
	c := newClaims(&Authority{Interface: interfaceName}, r, p, o.UID)
	trials := make([]Trial, len(tags))
	for i, t := range tags {
		trials[i].Tag = t
		if r.Endpoints == 0 {
			trials[i].Err = fmt.Errorf("%w: %s gives uid %d no endpoints", os.ErrPermission, r.nameIn(p), o.UID)
			continue
		}
		if err := c.permitsAny(t); err != nil {
			trials[i].Err = err
			continue
		}
		trials[i].Pattern = r.patternsOf(t, o.UID)
	}
	// A port of an owned address is permitted to the endpoint that has the address.
	for i := range trials {
		for _, whole := range trials {
			if t := trials[i].Tag; trials[i].Err != nil && whole.Err == nil && whole.Tag.Kind == endpoint.TagAddr && t.Kind != endpoint.TagAddr && whole.Tag.Addr == t.Addr {
				trials[i].Err, trials[i].Pattern = nil, whole.Tag.String()
			}
		}
	}
	held := int64(0)
	for i, t := range tags {
		if trials[i].Err != nil {
			continue
		}
		held++
		if t.Block {
			held += endpoint.BlockPorts - 1
		}
		if most := c.Tags(); o.UID != 0 && most != 0 && held > most {
			trials[i].Err = fmt.Errorf("%w: %s gives uid %d at most %d ports and other tags (a block of ports is %d)", endpoint.ErrBusy, r.nameIn(p), o.UID, most, endpoint.BlockPorts)
		}
	}
	return trials
}

// permitsAny is Permits for a tag that may have wildcards.
func (c *claims) permitsAny(t endpoint.Tag) error {
	open := t.Kind == endpoint.TagMessage && t.Message == 0
	if t.Kind == endpoint.TagUDP || t.Kind == endpoint.TagTCP {
		open = t.Port == 0 || !t.Addr.IsValid() || t.Addr.IsUnspecified()
	}
	if !open {
		return c.Permits(t)
	}
	_, _, err := c.Choices(t)
	return err
}

// patternsOf are the patterns of a rule that permit a tag: the first that does, or all that are
// needed together.
func (r *Rule) patternsOf(t endpoint.Tag, uid uint32) string {
	var texts []string
	for _, p := range r.Tags {
		alone := newClaims(&Authority{}, &Rule{Tags: []Pattern{p}}, &Policy{}, uid)
		if alone.permitsAny(t) == nil {
			return p.String()
		}
		if p.kind == t.Kind && p.hasAddr(t.Addr) {
			texts = append(texts, p.String())
		}
	}
	return strings.Join(texts, " ")
}
