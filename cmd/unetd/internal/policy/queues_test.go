//go:build linux

package policy

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// Lists of queues as text, and which queues they have.
func TestQueues(t *testing.T) {
	for _, c := range []struct {
		text, want string
		has, not   []uint32
	}{
		{"all", "all", []uint32{0, 7, 65535}, nil},
		{"none", "none", nil, []uint32{0, 7}},
		{"8,0-3", "0-3,8", []uint32{0, 3, 8}, []uint32{4, 7, 9}},
		{"0-1,2,3-3", "0-3", []uint32{3}, []uint32{4}},
		{"65535", "65535", []uint32{65535}, []uint32{0}},
	} {
		q, err := ParseQueues(c.text)
		if err != nil || q.String() != c.want {
			t.Errorf("%s: %v, %v", c.text, q, err)
		}
		for _, n := range c.has {
			if !q.Has(n) {
				t.Errorf("%s has no queue %d", c.text, n)
			}
		}
		for _, n := range c.not {
			if q.Has(n) {
				t.Errorf("%s has queue %d", c.text, n)
			}
		}
	}
	for text, want := range map[string]string{
		"": `"" is not a queue`, "x": `"x" is not a queue`, "1,": `"" is not a queue`, "-1": `"-1" is not a queue`, "65536": `"65536" is not a queue`, "0-all": "is not a queue", "3-1": `"3-1" ends before it begins: write 1-3`,
	} {
		if q, err := ParseQueues(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, q, err)
		}
	}
}

// A trusted user gets the queues that both the rule and unetd permit.
func TestQueuesOfARule(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, file, `rules:
  - {name: some, users: [alice], trusted: true, queues: [0-2, 5], endpoints: 1, memory: 1MiB}
  - {name: none, users: [bob], trusted: true, queues: [], endpoints: 1, memory: 1MiB}
  - {name: all, users: [1007], trusted: true, endpoints: 1, memory: 1MiB}
`)
	s, err := OpenSource(file, "", testNames(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	permitted, err := ParseQueues("2-7")
	if err != nil {
		t.Fatal(err)
	}
	a := Authority{Source: s, Interface: "eth0", Queues: permitted, Log: slog.New(slog.DiscardHandler)}
	const fromRule, fromFlag = "queues: 0-2,5", "--queues 2-7"
	for _, c := range []struct {
		uid, queue uint32
		want       string // in the error; "": permitted
	}{
		{1001, 2, ""}, {1001, 5, ""}, {1001, 0, fromFlag}, {1001, 3, fromRule},
		{1002, 2, "queues: none"},
		{1007, 2, ""}, {1007, 7, ""}, {1007, 8, fromFlag},
	} {
		o := mux.Owner{UID: c.uid}
		_, err := a.Open(o, endpoint.Request{Attach: endpoint.AttachQueue, Queue: c.queue})
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("uid %d, queue %d: %v", c.uid, c.queue, err)
		}
		if _, err := a.Open(o, endpoint.Request{Queue: c.queue}); err != nil {
			t.Errorf("uid %d, a port: %v", c.uid, err)
		}
	}
}
