//go:build linux

package protocol

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// FuzzRequest parses any record. What parses is written and parsed again, and must be equal.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":1,"op":"open","open":{"attach":"port","geometry":{},"tags":["msg:7"]}}`))
	f.Add([]byte(`{"v":1,"id":1,"op":"present"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"claim","tag":"tcp:[fd00::1]:32768-32831"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"resolve","addr":"fe80::1%eth0"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"resolve","addr":"::ffff:10.0.0.2"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"resolve","addr":"::ffff:10.0.0.2","source":"10.0.0.1"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"resolve","addr":"fd00::2","source":"fe80::1%eth0"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"list","after":7}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"counters"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"status"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"status","after":7,"socket":12}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"status","socket":12}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"uplinks"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"revoke","endpoint":7,"reason":"it floods"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"reload"}`))
	f.Add([]byte(`{"v":1,"id":1,"op":"open","open":{"attach":"port","geometry":{},"memory_paths":true}}`))
	f.Add([]byte(`{"v":1,"id":1,"op":"present","memory_paths":true}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"path","endpoint":18446744073709551615}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"unpath","path":18446744073709551615}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"capture"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"capture","endpoint":0}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"path","endpoint":7,"reason":"it floods"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"drain","undo":true}`))
	f.Add([]byte(`{"v":1,"id":1,"op":"open","open":{"tags":[null]}}`))
	f.Add([]byte(`{"v":1,"id":1,"op":"route"}`))
	f.Add([]byte(`{"v":1,"id":1,"op":"route","interface":"eth0","addr":"fd00::2","source":"fd00::1"}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		r, err := ParseRequest(record)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		o, err := r.Operation()
		if err != nil {
			return
		}
		written, err := o.Record(r.ID)
		if err != nil {
			if len(record) < MaxRecord/2 {
				t.Fatalf("%q: %v", record, err)
			}
			return
		}
		again, err := ParseRequest(written)
		if err != nil || again.ID != r.ID || again.Op != r.Op {
			t.Fatalf("%q: %+v, %v", written, again, err)
		}
		back, err := again.Operation()
		if err != nil {
			t.Fatalf("%q: %v", written, err)
		}
		x, _ := json.Marshal(o.Open)
		y, _ := json.Marshal(back.Open)
		if back.Tag != o.Tag || back.Addr != o.Addr || back.Source != o.Source || back.Interface != o.Interface || string(x) != string(y) || (back.After == nil) != (o.After == nil) ||
			o.After != nil && *back.After != *o.After || back.Endpoint != o.Endpoint || back.Path != o.Path || back.Reason != o.Reason || back.Undo != o.Undo || back.MemoryPaths != o.MemoryPaths || (back.Captured == nil) != (o.Captured == nil) || o.Captured != nil && *back.Captured != *o.Captured ||
			(back.Socket == nil) != (o.Socket == nil) || o.Socket != nil && *back.Socket != *o.Socket {
			t.Fatalf("%q became %q", record, written)
		}
	})
}

const grantRecord = `{"v":1,"id":1,"grant":{"id":5,"attach":"port",` +
	`"geometry":{"frame_size":2048,"frame_count":64,"fill_size":64,"completion_size":64,"rx_size":64,"tx_size":64},` +
	`"identity":{"interface":"eth0","link_addr":"02:00:00:00:00:01","addrs":["10.0.0.1/24","fd00::1/64","fe80::1/64"],"mtu":1500,"partial_checksums":true,"mode":"tcx"},` +
	`"tags":["msg:7"]}}`

// FuzzIncoming parses any record as one from unetd. Its notices are written as events and parsed again, and
// must be equal; and a record answers only the requests for which it has a result or an error.
func FuzzIncoming(f *testing.F) {
	for _, s := range []string{grantRecord, `{"v":1,"event":"routes","addrs":["10.0.0.2","fd00::1"]}`, `{"v":1,"event":"link","up":true}`,
		`{"v":1,"event":"address","addrs":["10.0.0.1","fd00::1"],"up":false}`, `{"v":1,"event":"address","addrs":[""],"up":false}`, `{"v":1,"event":"address","up":false}`,
		`{"v":1,"event":"address","prefixes":["10.0.0.1/24","fd00::1/64"],"up":true}`, `{"v":1,"event":"address","prefixes":[""],"up":true}`, `{"v":1,"event":"address","addrs":["10.0.0.1"],"up":true}`,
		`{"v":1,"id":1,"endpoints":[],"more":true}`, `{"v":1,"id":1,"counters":[{"name":"n","help":"h","value":18446744073709551615}]}`,
		`{"v":1,"id":1,"status":[{"id":7,"sockets":[{"record":1,"protocol":"tcp","local":"10.0.0.1:80","remote":"[fd00::1%eth0]:1"}],"sockets_more":true}],"more":true}`,
		`{"v":1,"id":1,"uplinks":[{"interface":"eth0","index":2,"mode":"tcx","up":true,"endpoints":1}],"draining":true}`,
		`{"v":1,"id":1,"reloaded":{"policy":"/etc/unet/policy.yaml","rules":2,"changes":["rule lab: added"]}}`,
		`{"v":1,"id":1,"error":{"code":"unreachable","no_route":true,"message":"m"}}`,
		`{"v":1,"id":1,"routes":[{"interface":"eth0","addrs":[{"prefix":"10.0.0.1/24","flags":["secondary"]}],"addrs_total":1,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500},"kernel":{"error":"network is unreachable"}}]}`,
		`{"v":1,"id":1,"error":{"code":"unreachable","prohibited":true,"blackhole":true,"message":"m"}}`,
		`{"v":1,"id":1,"lease":{"id":1,"tags":["msg:1"]}}`,
		strings.Replace(grantRecord, `"grant"`, `"table":true,"grant"`, 1), `{"v":1,"id":1,"table":true}`,
		`{"v":1,"event":"path","path":{"id":12,"peer":8,"epoch":3,"peer_epoch":18446744073709551615}}`, `{"v":1,"event":"path"}`,
		`{"v":1,"event":"link","up":true,"path":{}}`, `{"v":1,"id":1,"path":{"peer":8}}`} {
		for _, descriptors := range []uint8{0, GrantDescriptors, GrantDescriptors + 1, PathDescriptors} {
			f.Add([]byte(s), descriptors)
		}
	}
	f.Fuzz(func(t *testing.T, record []byte, descriptors uint8) {
		a, err := ParseIncoming(record, int(descriptors))
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		if want := map[bool]uint8{true: PathDescriptors}[a.Path != nil]; a.Grant == nil && descriptors != want {
			t.Fatalf("%q came with %d descriptors", record, descriptors)
		}
		if a.Path != nil {
			e, files := PathEvent(a.Path)
			b, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseIncoming(b, len(files))
			if err != nil || *again.Path != *a.Path {
				t.Fatalf("%q became %q: %v", record, b, err)
			}
		}
		list := a.Notices()
		var back []endpoint.Notice
		for _, e := range Events(list) {
			b, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseIncoming(b, 0)
			if err != nil {
				t.Fatalf("%q: %v", b, err)
			}
			back = append(back, again.Notices()...)
		}
		if len(list) > 0 && !slices.Contains(list, endpoint.Notice{Kind: endpoint.NoticeRoute}) && !slices.Equal(back, list) {
			t.Fatalf("%q: %v became %v", record, list, back)
		}
		for op, has := range map[string]bool{OpOpen: a.Grant != nil, OpPresent: a.Lease != nil, OpClaim: a.Tag != nil,
			OpResolve: a.Route != nil, OpList: a.Endpoints != nil, OpCounters: a.Counters != nil,
			OpUplinks: a.Uplinks != nil, OpRoute: a.Routes != nil, OpReload: a.Reloaded != nil} {
			if a.Answers(op) != (has || a.Error != nil) {
				t.Fatalf("%q answers %s: %v", record, op, a.Answers(op))
			}
		}
	})
}
