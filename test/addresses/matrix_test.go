//go:build linux

package addresses

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unet-go/unet/test/internal/unetd"
)

// row is one comparison.
type row struct {
	name    string
	compare func(*scene)
}

// Every row is the same on unet as in the kernel.
func TestRows(t *testing.T) {
	unetd.Tool(t, "ip")
	free := make(chan *world, worlds)
	for range worlds {
		free <- openWorld(t)
	}
	for _, r := range slices.Concat(matrix(), listening(), sources(), rows) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := <-free
			t.Cleanup(func() { free <- w })
			s := &scene{t, w}
			s.ip("addr flush dev uplink; addr add fe80::1/64 dev uplink nodad") // without it a kernel solicits no neighbours for unetd
			r.compare(s)
		})
	}
}

// matrix has a row for each family, number of addresses, change of them, and stage of the service that it follows.
func matrix() (rows []row) {
	for _, f := range []family{four, six} {
		for n := range subnets {
			for _, what := range []string{"add", "remove", "replace", "return"} {
				for _, stage := range []string{"configured", "opened", "listening", "connected"} {
					if n > 0 || what == "add" && stage != "connected" {
						name := fmt.Sprintf("%s/%d addresses/%s/%s", f.name, n, what, stage)
						rows = append(rows, row{name, func(s *scene) { s.change(f, n, what, stage) }})
					}
				}
			}
		}
	}
	return rows
}

// change is a row of the matrix. The last of n addresses changes, or one more comes.
func (s *scene) change(f family, n int, what, when string) {
	var have, commands []string
	for i := range n {
		have = append(have, f.own(i))
		commands = append(commands, f.add(f.own(i)))
	}
	s.ip(strings.Join(commands, ";"))
	kept := n // connections at these addresses go on
	var gone []probe
	at := func(stage string) {
		switch {
		case stage != when:
			return
		case what == "add":
			have = append(have, f.own(n))
			s.ip(f.add(f.own(n)))
			return
		}
		last := have[n-1]
		gone = []probe{reach("tcp", "", last)}
		have = have[:n-1]
		switch what {
		case "remove":
			s.ip(f.del(last))
			kept--
		case "replace":
			s.ip(f.del(last) + ";" + f.add(f.other(n-1)))
			have = append(have, f.other(n-1))
			kept--
		case "return":
			s.ip(f.del(last))
			if stage == "listening" || stage == "connected" {
				s.same(append(f.view(have...), gone...)...)
			}
			s.ip(f.add(last))
			have, gone = append(have, last), nil
		}
	}
	at("configured")
	s.open()
	at("opened")
	s.listen("", "")
	at("listening")
	var connections []probe
	if when == "connected" {
		for i := range n {
			for _, c := range []*connection{s.connect("tcp", f.own(i)), s.connectTo("tcp", f.peer(i)), s.connectTo("udp", f.peer(i))} {
				connections = append(connections, c.goesOn())
			}
		}
	}
	at("connected")
	s.same(slices.Concat(f.view(have...), gone, connections[:min(3*kept, len(connections))])...)
}
