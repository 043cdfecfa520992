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
	parse := func(queues string) (Queues, error) {
		p, err := Parse("policy.yaml", []byte("rules: [{name: a, users: [alice], trusted: true, endpoints: 1, memory: 1MiB, queues: ["+queues+"]}]"), testNames())
		if err != nil {
			return nil, err
		}
		return p.Rules[0].Queues, nil
	}
	for _, c := range []struct {
		text, want string
		has, not   []uint32
	}{
		{"", "none", nil, []uint32{0, 7}},
		{"8, 0-3", "0-3,8", []uint32{0, 3, 8}, []uint32{4, 7, 9}},
		{"0-1, 2, 3-3", "0-3", []uint32{3}, []uint32{4}},
		{"65535", "65535", []uint32{65535}, []uint32{0}},
	} {
		q, err := parse(c.text)
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
	for _, text := range []string{"x", "-1", "65536", "0-all", "3-1", "1-", "all"} {
		if q, err := parse(text); err == nil || !strings.Contains(err.Error(), "queues: \""+text+"\": write a number such as 8") {
			t.Errorf("%q: %v, %v", text, q, err)
		}
	}
}

// A trusted user gets the queues that the rule permits.
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
	a := Authority{Source: s, Interface: "eth0", Log: slog.New(slog.DiscardHandler)}
	const fromRule = "queues: 0-2,5"
	for _, c := range []struct {
		uid, queue uint32
		want       string // in the error; "": permitted
	}{
		{1001, 2, ""}, {1001, 5, ""}, {1001, 0, ""}, {1001, 3, fromRule},
		{1002, 2, "queues: none"},
		{1007, 2, ""}, {1007, 65535, ""},
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
