//go:build linux

package wiretap

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// requireTools names the environment variable that, set to 1, makes a missing tool
// a failure.
const requireTools = "UNET_REQUIRE_TOOLS"

// fields are what tshark is asked for, of each frame.
var fields = []string{
	"frame.number", "eth.src", "ip.src", "ip.dst", "ip.len", "ip.checksum.status", "ipv6.src", "ipv6.dst", "ipv6.plen",
	"udp.srcport", "udp.dstport", "udp.checksum.status",
	"tcp.srcport", "tcp.dstport", "tcp.seq_raw", "tcp.ack_raw", "tcp.len", "tcp.hdr_len", "tcp.window_size_value", "tcp.flags", "tcp.checksum.status",
	"tcp.options.mss_val", "tcp.options.wscale.shift", "tcp.options.sack_perm", "tcp.options.sack.count", "tcp.options.timestamp.tsval",
	"_ws.malformed", "_ws.expert.severity", "_ws.expert.message",
}

const aggregator = "|" // between several values of a field

// missing is how tshark's message about a gap begins.
const missing = "Previous segment(s) not captured"

// Messages of tshark that need not be errors of ours, by how they begin.
var harmless = []string{
	"Connection reset (RST)",
	"TCP Zero Window segment",
	"TCP window specified by the receiver is now completely full",
	missing, // the judge checks gaps itself: tshark does not record the octet of a probe
	"This frame is a (suspected) out-of-order segment",
	"D-SACK Sequence", // the kernel has sent data twice, and we report it
}

// unseen is tshark's message about an acknowledgment of data that was not captured. It
// is sometimes wrong about data that came out of order; the judge checks that itself.
const unseen = "ACKed segment that wasn't captured"

const (
	severityWarn  = 0x00600000
	severityError = 0x00800000
	checksumBad   = "0"
)

// consultOracle runs tshark on the capture, judges its output, and compares that with the
// first judge's result.
func consultOracle(t *testing.T, c *Capture, lossless bool) {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv(requireTools) == "1" {
			t.Errorf("%s=1, but %v", requireTools, err)
		} else {
			t.Logf("no tshark: the capture gets no independent check (%s=1 makes this a failure)", requireTools)
		}
		return
	}
	args := []string{
		"-n", "-r", c.path, "-T", "fields", "-E", "occurrence=a", "-E", "aggregator=" + aggregator,
		"-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE",
		"-o", "tcp.analyze_sequence_numbers:TRUE", "-o", "tcp.desegment_tcp_streams:FALSE",
		"-d", "tcp.port==1-65535,data", "-d", "udp.port==1-65535,data", // do not dissect the payload
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME=") // without preferences of a user
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	o := &oracle{judge: newJudge(c.Judge.ours), link: c.linkOurs.String(), mtu: c.decoder.mtu, impaired: c.impaired}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if err := o.take(lines.Text()); err != nil {
			t.Errorf("tshark: %v: %q", err, lines.Text())
			break
		}
	}
	for lines.Scan() { // also after an error, so that it ends
	}
	if err := cmd.Wait(); err != nil || lines.Err() != nil {
		t.Errorf("tshark: %v, %v: %s", err, lines.Err(), complaints.String())
		return
	}
	if o.frames != c.frames {
		t.Errorf("tshark saw %d frames of %d", o.frames, c.frames)
	}
	if len(o.notes) > 0 {
		t.Logf("tshark remarks on our segments: %v", o.notes)
	}
	report(t, "tshark", o.judge, lossless)
	if n := o.noted(missing); lossless && n > o.judge.Probes {
		t.Errorf("tshark misses %d segments of ours", n)
	}
	if got, want := o.judge.String(), c.Judge.String(); got != want {
		t.Errorf("tshark: %s; we saw %s", got, want)
	}
}

// oracle reads what tshark prints.
type oracle struct {
	judge  *Judge
	link   string // our MAC address
	mtu    int
	frames int
	notes  map[string]int // counts of its messages about our segments

	impaired bool
}

// take takes the line of a frame.
func (o *oracle) take(line string) error {
	o.frames++
	values := strings.Split(line, "\t")
	if len(values) != len(fields) {
		return fmt.Errorf("%d fields", len(values))
	}
	v := make(map[string]string, len(fields))
	for i, f := range fields {
		v[f] = values[i]
	}
	var err error
	number := func(field string) uint32 {
		text, _, _ := strings.Cut(v[field], aggregator) // an ICMP error quotes another packet
		if text == "" {
			return 0
		}
		n, e := strconv.ParseUint(text, 0, 32)
		if e != nil {
			err = fmt.Errorf("%s: %w", field, e)
		}
		return uint32(n)
	}
	ours := v["eth.src"] == o.link
	s := segment{frame: int(number("frame.number")), scale: -1}
	ip := "ip"
	if s.merged = int(number("ip.len")) > o.mtu; v["ipv6.src"] != "" {
		ip = "ipv6"
		s.merged = 40+int(number("ipv6.plen")) > o.mtu
	}
	quoted := strings.Contains(v[ip+".src"], aggregator) || v["ip.src"] != "" && v["ipv6.src"] != "" // in an ICMP error
	violation := func(what string) {
		if ours {
			s.violations = append(s.violations, what)
		}
	}
	if v["_ws.malformed"] != "" {
		violation("malformed")
	}
	partly := s.merged || quoted // a quoted packet may have been damaged by the link
	if !partly {
		if v["ip.checksum.status"] == checksumBad {
			violation("IP checksum")
		}
		if v["tcp.checksum.status"] == checksumBad {
			violation("TCP checksum")
		}
		if v["udp.checksum.status"] == checksumBad {
			violation("UDP checksum")
		}
	}
	if ours {
		for _, m := range o.objections(v, partly) {
			violation(m)
		}
	}
	ends := func(protocol string) {
		for name, to := range map[string]*netip.AddrPort{"src": &s.src, "dst": &s.dst} {
			a, e := netip.ParseAddr(v[ip+"."+name])
			err = errors.Join(err, e)
			*to = netip.AddrPortFrom(a, uint16(number(protocol+"."+name+"port")))
		}
	}
	switch {
	case v["tcp.srcport"] != "" && v["tcp.seq_raw"] != "" && !quoted:
		flags := number("tcp.flags")
		s.fin, s.syn, s.rst, s.ack_ = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&16 != 0
		s.seq, s.ack, s.text, s.header = number("tcp.seq_raw"), number("tcp.ack_raw"), int(number("tcp.len")), int(number("tcp.hdr_len"))
		s.window, s.mss = uint16(number("tcp.window_size_value")), int(number("tcp.options.mss_val"))
		if v["tcp.options.wscale.shift"] != "" {
			s.scale = int(number("tcp.options.wscale.shift"))
		}
		s.sackPermitted, s.sackBlocks = v["tcp.options.sack_perm"] != "", int(number("tcp.options.sack.count"))
		s.timestamps, s.tsVal = v["tcp.options.timestamp.tsval"] != "", number("tcp.options.timestamp.tsval")
		ends("tcp")
		o.judge.take(&s)
	case v["udp.srcport"] != "" && !quoted:
		s.udp = true
		ends("udp")
		o.judge.take(&s)
	case len(s.violations) > 0:
		o.judge.take(&s) // without addresses: only for its violations
	}
	return err
}

// objections are the messages of tshark's expert about a frame of ours that are not
// harmless. Checksums of a frame that is merged or quotes a packet are not checked.
func (o *oracle) objections(v map[string]string, partly bool) (out []string) {
	if v["_ws.expert.message"] == "" {
		return nil
	}
	severities := strings.Split(v["_ws.expert.severity"], aggregator)
	for i, m := range strings.Split(v["_ws.expert.message"], aggregator) {
		if o.notes == nil {
			o.notes = make(map[string]int)
		}
		name, _, _ := strings.Cut(m, ":")
		o.notes[name]++
		severity := 0
		if i < len(severities) {
			severity, _ = strconv.Atoi(severities[i])
		}
		ok := severity < severityWarn || severity < severityError && beginsWith(m, harmless) || partly && strings.HasPrefix(m, "Bad checksum") ||
			o.impaired && strings.HasPrefix(m, unseen)
		if !ok {
			out = append(out, m)
		}
	}
	return out
}

// noted is how many remarks on our segments begin so.
func (o *oracle) noted(what string) (n int) {
	for m, times := range o.notes {
		if strings.HasPrefix(m, what) {
			n += times
		}
	}
	return n
}

func beginsWith(s string, any []string) bool {
	for _, p := range any {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
