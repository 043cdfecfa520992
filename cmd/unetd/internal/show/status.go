//go:build linux

package show

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/endpoint"
)

// StatusOptions choose what Status shows, and how.
type StatusOptions struct {
	Endpoint uint64 // this one only; 0: all
	TCP, UDP bool   // sockets of these protocols only; neither: of both
	Listen   bool   // listeners and unconnected sockets only
	Numeric  bool   // no names of users
	Width    int    // columns of the terminal; 0: no limit
	Color    bool
}

// Shown is an endpoint as it is shown, with the sockets that are.
type Shown struct {
	endpoint.Status
	User  string `json:"user,omitempty"`
	Rates *Rates `json:"rates,omitempty"` // nil: there was one sample
}

// Rates are frames a second between two samples, as the process publishes them, and those from
// the endpoint as the kernel counts them.
type Rates struct {
	Received     float64 `json:"received"`
	Sent         float64 `json:"sent"`
	PortOut      float64 `json:"port_out"`
	PathReceived float64 `json:"path_received,omitempty"`
	PathSent     float64 `json:"path_sent,omitempty"`
}

// Choose returns the endpoints and sockets to show. before, with the sample that was taken
// passed ago, gives rates.
func (o *StatusOptions) Choose(all, before []endpoint.Status, passed time.Duration) []Shown {
	list := []Shown{} // none: [], not null
	names := map[uint32]string{}
	for i := range all {
		s := Shown{Status: all[i]}
		if !o.keep(&s) {
			continue
		}
		if !o.Numeric {
			name, known := names[s.UID]
			if !known {
				name = userName(s.UID)
				names[s.UID] = name
			}
			s.User = name
		}
		if k := slices.IndexFunc(before, func(b endpoint.Status) bool { return b.ID == s.ID }); k >= 0 {
			s.Rates = rates(&all[i], &before[k], passed)
		}
		list = append(list, s)
	}
	return list
}

// keep removes the sockets that are not to be shown, and reports whether the endpoint is. If sockets of one
// kind are asked for, an endpoint without any is not shown.
func (o *StatusOptions) keep(s *Shown) bool {
	if o.Endpoint != 0 && s.ID != o.Endpoint {
		return false
	}
	if !o.TCP && !o.UDP && !o.Listen {
		return true
	}
	var kept []endpoint.Socket
	for _, k := range s.Sockets {
		protocol := !o.TCP && !o.UDP || o.TCP && k.Protocol == "tcp" || o.UDP && k.Protocol == "udp"
		if protocol && (!o.Listen || k.State == "listening" || k.State == "unconnected") {
			kept = append(kept, k)
		}
	}
	s.Sockets = kept
	return len(kept) > 0
}

// rates are those between two samples; 0 if a counter went back.
func rates(now, before *endpoint.Status, passed time.Duration) *Rates {
	r := &Rates{}
	per := func(a, b uint64) float64 {
		if a < b || passed <= 0 {
			return 0
		}
		return float64(a-b) / passed.Seconds()
	}
	if a, b := now.Published, before.Published; a != nil && b != nil {
		r.Received, r.Sent = per(a.Received, b.Received), per(a.Sent, b.Sent)
		r.PathReceived, r.PathSent = per(a.PathReceived, b.PathReceived), per(a.PathSent, b.PathSent)
	}
	if a, b := now.Port, before.Port; a != nil && b != nil {
		r.PortOut = per(a.FramesOut, b.FramesOut)
	}
	return r
}

// StatusJSON writes the list as JSON.
func StatusJSON(w io.Writer, list []Shown) error { return writeJSON(w, list) }

// Text writes the list for people.
func (o *StatusOptions) Text(w io.Writer, list []Shown) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no endpoint or socket matches")
		return err
	}
	var b strings.Builder
	for i := range list {
		if i > 0 {
			b.WriteByte('\n')
		}
		o.endpoint(&b, &list[i])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (o *StatusOptions) endpoint(b *strings.Builder, s *Shown) {
	process := strconv.Itoa(s.PID)
	if s.Command != "" {
		process += "(" + s.Command + ")"
	}
	device := s.Device
	if s.Attach == endpoint.AttachQueue {
		device += "/" + strconv.FormatUint(uint64(s.Queue), 10)
	}
	head := fmt.Sprintf("endpoint %d  user %s  pid %s  %v %s  %s  %s  %s", s.ID, ownerOf(s.UID, s.User), process, s.Attach, device, s.Mode, policy.Bytes(s.SegmentBytes), stateOf(s.Info))
	o.line(b, head, "\x1b[1m", "")
	o.line(b, "tags     "+tagsOf(s.Info), "", "  ")
	if q := queuesOf(&s.Status); q != "" {
		o.line(b, "queues   "+q, "", "  ")
	}
	if f := framesOf(&s.Status); f != "" {
		o.line(b, "frames   "+f, "", "  ")
	}
	if p := pathsOf(&s.Status); p != "" {
		o.line(b, "memory   "+p, "", "  ")
	}
	if r := s.Rates; r != nil {
		text := fmt.Sprintf("rates    in %s/s  out %s/s  by the port out %s/s", rate(r.Received), rate(r.Sent), rate(r.PortOut))
		if r.PathReceived+r.PathSent > 0 {
			text += fmt.Sprintf("  by memory in %s/s  out %s/s", rate(r.PathReceived), rate(r.PathSent))
		}
		o.line(b, text, "", "  ")
	}
	if d := dropsOf(&s.Status); d != "" {
		o.line(b, "dropped  "+d, "\x1b[31m", "  ")
	}
	if len(s.Sockets) > 0 {
		o.sockets(b, s.Sockets)
	}
}

// queuesOf are the frames that wait in the queues of an endpoint.
func queuesOf(s *endpoint.Status) string {
	var parts []string
	if s.FillQueue != nil {
		parts = append(parts, fmt.Sprintf("free %d", *s.FillQueue))
	}
	if p := s.Published; p != nil {
		parts = append(parts, fmt.Sprintf("receive %d", p.ReceiveQueue), fmt.Sprintf("send %d", p.SendQueue))
	}
	return strings.Join(parts, "  ")
}

// framesOf are the frames since the endpoint was opened.
func framesOf(s *endpoint.Status) string {
	var parts []string
	if p := s.Published; p != nil {
		parts = append(parts, fmt.Sprintf("in %d", p.Received), fmt.Sprintf("out %d", p.Sent))
	}
	if p := s.Port; p != nil {
		if p.FramesIn != nil {
			parts = append(parts, fmt.Sprintf("by the port in %d (%d bytes)", *p.FramesIn, *p.BytesIn))
		}
		parts = append(parts, fmt.Sprintf("by the port out %d (%d bytes)", p.FramesOut, p.BytesOut))
	}
	return strings.Join(parts, "  ")
}

// pathsOf are the memory paths that an endpoint has, and the frames by all that it has had; empty if it never had one.
func pathsOf(s *endpoint.Status) string {
	p := s.Published
	if p == nil {
		p = &endpoint.Published{}
	}
	if s.Paths == 0 && p.PathReceived+p.PathSent == 0 {
		return ""
	}
	unit := "paths"
	if s.Paths == 1 {
		unit = "path"
	}
	return fmt.Sprintf("%d %s  in %d  out %d", s.Paths, unit, p.PathReceived, p.PathSent)
}

// dropsOf are the reasons for which frames were dropped or refused.
func dropsOf(s *endpoint.Status) string {
	var parts []string
	add := func(n uint64, why string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, why))
		}
	}
	if p := s.Port; p != nil {
		add(p.DroppedIn, "backlog full")
	}
	if p := s.Published; p != nil {
		add(p.ReceiveQueueFull, "receive queue full")
		add(p.FreeQueueEmpty, "free queue empty")
		add(p.ReceiveDropped, "not received")
		add(p.Malformed, "malformed")
		add(p.InvalidReceive, "invalid free entries")
		add(p.InvalidSend, "invalid send entries")
		add(p.SendQueueFull, "sends refused, send queue full")
		add(p.NoBuffers, "allocations refused, no free frame")
		add(p.PathDropped, "by memory paths")
	}
	return strings.Join(parts, ", ")
}

func rate(r float64) string { return strconv.FormatFloat(r, 'f', 0, 64) }

// line writes text behind an indentation, broken if the terminal is narrower.
func (o *StatusOptions) line(b *strings.Builder, text, color, indent string) {
	for i, part := range wrap(text, o.Width-len(indent)) {
		if i > 0 && indent == "" {
			part = " " + part
		}
		if o.Color && color != "" {
			part = color + part + "\x1b[0m"
		}
		b.WriteString(indent + part + "\n")
	}
}

// wrap breaks text at spaces, and words that are too long where they must be. width 0 or less:
// it does not break.
func wrap(text string, width int) (lines []string) {
	if width <= 0 || len([]rune(text)) <= width {
		return []string{text}
	}
	width = max(width-1, 1) // for the space before all but the first
	var line []rune
	for _, word := range strings.Fields(text) {
		r := []rune(word)
		if len(line) > 0 && len(line)+1+len(r) > width {
			lines, line = append(lines, string(line)), nil
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		for len(r) > width {
			lines, r = append(lines, string(r[:width])), r[width:]
		}
		line = append(line, r...)
	}
	return append(lines, string(line))
}

var socketHeads = []string{"PROTO", "STATE", "RECV-Q", "SEND-Q", "LOCAL", "REMOTE", "RTT/VAR", "CWND", "RETRANS", "IN", "OUT", "DROPS"}

func socketFields(s *endpoint.Socket) []string {
	remote := "*"
	if s.Remote.IsValid() {
		remote = s.Remote.String()
	}
	f := []string{s.Protocol, string(s.State), fmt.Sprint(s.ReceiveQueue), fmt.Sprint(s.SendQueue), s.Local.String(), remote, "-", "-", "-", "-", "-", "-"}
	if s.Protocol == "tcp" && s.Remote.IsValid() {
		if s.RTT > 0 {
			f[6] = short(s.RTT) + "/" + short(s.RTTVar)
		}
		f[7], f[8], f[9], f[10] = fmt.Sprint(s.Window), fmt.Sprint(s.Retransmitted), fmt.Sprint(s.BytesIn), fmt.Sprint(s.BytesAcked)
	}
	if s.Protocol == "udp" {
		f[9], f[10], f[11] = fmt.Sprint(s.Received), fmt.Sprint(s.Sent), fmt.Sprint(s.Drops)
	}
	return f
}

// short is a duration with three digits: 6.42us, 12.3ms.
func short(d time.Duration) string {
	digit := time.Duration(1) // what the last digit stands for
	for d >= 1000*digit {
		digit *= 10
	}
	return strings.Replace(d.Round(digit).String(), "µ", "u", 1)
}

// sockets writes a table, or, if the terminal is too narrow for it, a line for each field.
func (o *StatusOptions) sockets(b *strings.Builder, list []endpoint.Socket) {
	rows := [][]string{socketHeads}
	for i := range list {
		rows = append(rows, socketFields(&list[i]))
	}
	var text strings.Builder
	t := table(&text)
	for _, r := range rows {
		fmt.Fprintf(t, "  %s\n", strings.Join(r, "\t"))
	}
	t.Flush()
	wide := func(line string) bool { return o.Width > 0 && len(line) > o.Width }
	if !slices.ContainsFunc(strings.Split(text.String(), "\n"), wide) {
		b.WriteString(text.String())
		return
	}
	for _, r := range rows[1:] {
		o.line(b, r[0]+" "+r[1], "", "  ")
		for i, field := range r[2:] {
			if field != "-" {
				o.line(b, strings.ToLower(socketHeads[i+2])+" "+field, "", "   ")
			}
		}
	}
}

// TerminalWidth is the number of columns of a terminal; ok: w is one.
func TerminalWidth(w io.Writer) (columns int, ok bool) {
	file, isFile := w.(*os.File)
	if !isFile {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}
