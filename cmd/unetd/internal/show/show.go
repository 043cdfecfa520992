//go:build linux

// Package show writes what a running unetd has, and what a policy permits, as text or as
// JSON.
package show

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

// List writes all endpoints of the unetd at socket.
func List(ctx context.Context, socket string, w io.Writer, asJSON bool) error {
	all, err := control.Operator{Socket: socket}.List(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(w, append([]endpoint.Info{}, all...))
	}
	if err := list(w, all, userName); err != nil {
		return err
	}
	_, draining, err := control.Operator{Socket: socket}.Uplinks(ctx)
	return errors.Join(err, drains(w, draining))
}

// drains writes a line if unetd is being drained.
func drains(w io.Writer, draining bool) error {
	if !draining {
		return nil
	}
	_, err := fmt.Fprintln(w, "draining: no new endpoints are granted (unetd drain --undo)")
	return err
}

// Uplinks writes the interfaces that the unetd at socket serves.
func Uplinks(ctx context.Context, socket string, w io.Writer, asJSON bool) error {
	all, draining, err := control.Operator{Socket: socket}.Uplinks(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(w, struct {
			Uplinks  []endpoint.Uplink `json:"uplinks"`
			Draining bool              `json:"draining"`
		}{all, draining})
	}
	t := table(w)
	fmt.Fprintln(t, "INTERFACE\tINDEX\tMODE\tLINK\tENDPOINTS")
	for _, u := range all {
		if u.Unusable != "" {
			fmt.Fprintf(t, "%s\t-\t-\tunusable: %s\t-\n", u.Interface, u.Unusable)
			continue
		}
		link := "up"
		if !u.Up {
			link = "down"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\n", u.Interface, u.Index, u.Mode, link, u.Endpoints)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return drains(w, draining)
}

// Reload makes the unetd at socket read its policy again, and writes what has changed.
func Reload(ctx context.Context, socket string, w io.Writer, asJSON bool) error {
	c, err := control.Operator{Socket: socket}.Reload(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(w, c)
	}
	rules := "rules"
	if c.Rules == 1 {
		rules = "rule"
	}
	lines := []string{fmt.Sprintf("%s: reloaded, %d %s", c.Policy, c.Rules, rules)}
	if c.Warning != "" {
		lines = append(lines, "warning: "+c.Warning)
	}
	lines = append(lines, c.Changes...)
	if len(c.Changes) == 0 {
		lines = append(lines, "no rule has changed")
	}
	_, err = fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// list writes a line for each endpoint.
func list(w io.Writer, all []endpoint.Info, nameOf func(uid uint32) string) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no endpoints")
		return err
	}
	t := table(w)
	several := slices.ContainsFunc(all, func(e endpoint.Info) bool { return e.Interface != all[0].Interface })
	if several {
		fmt.Fprint(t, "INTERFACE\t")
	}
	rates, limited := "", slices.ContainsFunc(all, func(e endpoint.Info) bool { return e.Rates != (endpoint.Rates{}) })
	if limited {
		rates = "RATES\tREFUSED\t"
	}
	paths, connected := "", slices.ContainsFunc(all, func(e endpoint.Info) bool { return e.Paths > 0 })
	if connected {
		paths = "PATHS\t"
	}
	fmt.Fprintf(t, "ID\tUID\tPID\tATTACH\tDEVICE\tMODE\tZERO-COPY\tSEGMENT\tSTATE\t%s%sTAGS\n", paths, rates)
	for _, e := range all {
		device, zeroCopy := e.Device, "-" // ports have none
		if e.Attach == endpoint.AttachQueue {
			device += "/" + strconv.FormatUint(uint64(e.Queue), 10)
			if e.SpreadOver > 0 {
				device += " of " + strconv.FormatUint(uint64(e.SpreadOver), 10)
			}
			if zeroCopy = "yes"; !e.ZeroCopy {
				zeroCopy = "no: " + e.CopyReason
			}
		}
		if several {
			fmt.Fprintf(t, "%s\t", e.Interface)
		}
		if limited {
			rates = fmt.Sprintf("%s\t%d\t", ratesOf(e), e.TxRateEndpoint+e.TxRateUser)
		}
		if connected {
			paths = fmt.Sprintf("%d\t", e.Paths)
		}
		fmt.Fprintf(t, "%d\t%s\t%d\t%v\t%s\t%s\t%s\t%s\t%s\t%s%s%s\n", e.ID, ownerOf(e.UID, nameOf(e.UID)), e.PID, e.Attach, device, e.Mode, zeroCopy, policy.Bytes(e.SegmentBytes), stateOf(e), paths, rates, tagsOf(e))
	}
	return t.Flush()
}

// ownerOf is a uid and the name of its user, if it has one: 1001(alice).
func ownerOf(uid uint32, name string) string {
	text := strconv.FormatUint(uint64(uid), 10)
	if name != "" {
		text += "(" + name + ")"
	}
	return text
}

func stateOf(e endpoint.Info) string {
	if e.Leased {
		return "leased"
	}
	return "waiting"
}

func ratesOf(e endpoint.Info) string {
	text := policy.Rate(e.Rates.Endpoint)
	if e.Rates.User != (endpoint.Rate{}) {
		text += "; user " + policy.Rate(e.Rates.User)
	}
	return text
}

func tagsOf(e endpoint.Info) string {
	if len(e.Tags) == 0 {
		return "-"
	}
	texts := make([]string, len(e.Tags))
	for i, t := range e.Tags {
		texts[i] = t.String()
	}
	text := strings.Join(texts, " ")
	if more := e.TagsTotal - len(e.Tags); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// userName is "" for a uid that has no name.
func userName(uid uint32) string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return ""
	}
	return u.Username
}

// Counters writes the counters of the unetd at socket; without zeros, those that are not 0.
func Counters(ctx context.Context, socket string, w io.Writer, asJSON, zeros bool) error {
	all, err := control.Operator{Socket: socket}.Counters(ctx)
	if err != nil {
		return err
	}
	some := []endpoint.Counter{}
	for _, c := range all {
		if zeros || c.Value != 0 {
			some = append(some, c)
		}
	}
	if asJSON {
		return writeJSON(w, some)
	}
	return counters(w, some)
}

func counters(w io.Writer, list []endpoint.Counter) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "all counters are 0")
		return err
	}
	longest, several := 0, false
	for _, c := range list {
		several = several || c.Interface != list[0].Interface && c.Interface != ""
		longest = max(longest, len(strconv.FormatUint(c.Value, 10)))
	}
	t := table(w)
	for _, c := range list {
		fmt.Fprintf(t, "%*d\t%s\t", longest, c.Value, c.Name)
		if several {
			fmt.Fprintf(t, "%s\t", cmp.Or(c.Interface, "all"))
		}
		fmt.Fprintln(t, c.Help)
	}
	return t.Flush()
}

// table aligns columns that are separated by tabs.
func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// writeJSON writes one value.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
