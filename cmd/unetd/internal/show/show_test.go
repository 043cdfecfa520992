//go:build linux

package show

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// tags are tags by their texts.
func tags(t *testing.T, texts ...string) (list []endpoint.Tag) {
	t.Helper()
	for _, text := range texts {
		tag, err := endpoint.ParseTag(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, tag)
	}
	return list
}

// The table of endpoints.
func TestList(t *testing.T) {
	var b strings.Builder
	err := list(&b, []endpoint.Info{
		{ID: 1, UID: 65534, PID: 4711, Device: "unet1", Mode: "native", CopyReason: "ports have no zero copy", SegmentBytes: 8 << 20, Tags: tags(t, "udp:10.0.0.1:7000", "msg:9"), TagsTotal: 2, Leased: true},
		{ID: 12, UID: 4000000000, PID: 3, Device: "unet12", Mode: "native", CopyReason: "ports have no zero copy", SegmentBytes: 1 << 30, Tags: tags(t, "tcp:[fd00::1]:32768-32831"), TagsTotal: 300, Paths: 1024},
		{ID: 13, PID: 5, Attach: endpoint.AttachQueue, Device: "eth0", Queue: 2, Mode: "native", ZeroCopy: true, SegmentBytes: 32 << 10, Leased: true},
	}, func(uid uint32) string { return map[uint32]string{0: "root", 65534: "nobody"}[uid] })
	want := `
ID  UID            PID   ATTACH  DEVICE  MODE    ZERO-COPY  SEGMENT  STATE    PATHS  TAGS
1   65534(nobody)  4711  port    unet1   native  -          8MiB     leased   0      udp:10.0.0.1:7000 msg:9
12  4000000000     3     port    unet12  native  -          1GiB     waiting  1024   tcp:[fd00::1]:32768-32831 and 299 more
13  0(root)        5     queue   eth0/2  native  yes        32KiB    leased   0      -
`[1:]
	if err != nil || b.String() != want {
		t.Errorf("%v\n%s", err, b.String())
	}
	b.Reset()
	if err := list(&b, nil, userName); err != nil || b.String() != "no endpoints\n" {
		t.Errorf("%v, %q", err, b.String())
	}
	if userName(0) != "root" || userName(4000000000) != "" {
		t.Errorf("%q, %q", userName(0), userName(4000000000))
	}
}

// The table of counters.
func TestCounters(t *testing.T) {
	var b strings.Builder
	err := counters(&b, []endpoint.Counter{{Name: "rx_port", Help: "delivered to a port", Value: 12345}, {Name: "tx_forged_link", Help: "not sent", Value: 7}})
	want := "12345  rx_port         delivered to a port\n    7  tx_forged_link  not sent\n"
	if err != nil || b.String() != want {
		t.Errorf("%v\n%s", err, b.String())
	}
	b.Reset()
	if err := counters(&b, nil); err != nil || b.String() != "all counters are 0\n" {
		t.Errorf("%v, %q", err, b.String())
	}
}

// An empty list is [] in JSON, not null.
func TestJSON(t *testing.T) {
	var b strings.Builder
	if err := writeJSON(&b, append([]endpoint.Info{}, nil...)); err != nil || b.String() != "[]\n" {
		t.Errorf("%v, %q", err, b.String())
	}
	b.Reset()
	if err := writeJSON(&b, []endpoint.Counter{{Name: "a", Help: "<b>", Value: 1<<64 - 1}}); err != nil {
		t.Fatal(err)
	}
	var back []endpoint.Counter
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back[0].Value != 1<<64-1 {
		t.Errorf("%v, %+v", err, back)
	}
}

// A queue over which the sender spreads an endpoint's frames is shown with their number.
func TestListOfAQueueOfSeveral(t *testing.T) {
	var b strings.Builder
	err := list(&b, []endpoint.Info{{ID: 1, Attach: endpoint.AttachQueue, Device: "veth0", Queue: 1, SpreadOver: 4}}, func(uint32) string { return "" })
	if err != nil || !strings.Contains(b.String(), "  queue   veth0/1 of 4  ") {
		t.Errorf("%v\n%s", err, b.String())
	}
}
