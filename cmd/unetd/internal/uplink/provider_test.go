package uplink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

const users = `
rules:
  - name: web
    users: [1001]
    interfaces: [eth0]
    tags: ["udp:*:7000-7003", "tcp:10.0.0.1:*", "udp:*:*", "addr:10.0.0.128/25", "msg:1-3"]
    endpoints: 1
    memory: 1MiB
  - {name: watcher, users: [1002], operator: true}
  - {name: elsewhere, users: [1003], interfaces: [eth1], tags: ["msg:*"], endpoints: 1, memory: 1MiB}
`

// What the policy is against is refused, and the answer says by which rule and what to do.
func TestRefusals(t *testing.T) {
	u, builtIn := under(t, users), under(t, "")
	file := u.authority.Source.Policy().File
	first := policy.FirstUnprivileged()
	for _, c := range []struct {
		u    *Uplink
		uid  uint32
		req  endpoint.Request
		is   error
		want string
	}{
		{builtIn, 1001, endpoint.Request{}, os.ErrPermission, "permission denied: uid 1001 on eth0: without a policy file only uid 0 gets endpoints: ask an operator to write /etc/unet/policy.yaml and to reload unetd"},
		{u, 0, endpoint.Request{}, os.ErrPermission, "permission denied: no rule of " + file + " is for uid 0 on eth0: ask an operator to add one and to reload unetd"},
		{u, 1003, endpoint.Request{}, os.ErrPermission, "permission denied: no rule of " + file + " is for uid 1003 on eth0: ask an operator to add one and to reload unetd"},
		{u, 1002, endpoint.Request{}, os.ErrPermission, "permission denied: rule watcher of " + file + " gives uid 1002 no endpoints on eth0"},
		{u, 1001, endpoint.Request{Attach: endpoint.AttachQueue}, os.ErrPermission, "permission denied: rule web of " + file + " gives uid 1001 no queues of eth0: attach to a port, or ask an operator for trusted: true"},
		{u, 1001, endpoint.Request{Tags: []endpoint.Tag{tag(t, "msg:1"), tag(t, "msg:4")}}, endpoint.ErrTagDenied,
			"tag not allowed: msg:4: rule web of " + file + " does not permit it to uid 1001: ask an operator to add it to the tags of the rule"},
		{u, 1001, endpoint.Request{Tags: []endpoint.Tag{tag(t, "tcp:10.0.0.2:0")}}, endpoint.ErrTagDenied,
			"tag not allowed: tcp:10.0.0.2:0: rule web of " + file + " does not permit it to uid 1001: ask an operator to add it to the tags of the rule"},
		{u, 1001, endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 1}}, endpoint.ErrGeometry, "unusable segment geometry: 1 frames: want at least 16"},
		{u, 1001, endpoint.Request{}, control.ErrBusy, "busy: uid 1001 has 0 of at most 1MiB of memory in segments (rule web of " + file +
			") and asks for 8MiB; that of an endpoint that was closed counts until it is unmapped: end one, ask for less, or ask an operator for more"},
		{u, 1001, endpoint.Request{Tags: []endpoint.Tag{tag(t, fmt.Sprintf("udp:10.0.0.1:%d", first-1))}}, endpoint.ErrTagDenied,
			fmt.Sprintf("tag not allowed: udp:10.0.0.1:%d: rule web of %s does not permit it to uid 1001: its port * does not stand for ports below %d: ask an operator to name the port in the rule", first-1, file, first)},
	} {
		if first == 1 && strings.Contains(c.want, "its port *") {
			continue // this system keeps no ports for root
		}
		_, _, err := c.u.OpenEndpoint(context.Background(), control.Peer{UID: c.uid, GID: 77}, c.req)
		if !errors.Is(err, c.is) || err.Error() != c.want {
			t.Errorf("uid %d, %+v:\n got %v\nwant %s", c.uid, c.req, err, c.want)
		}
	}
}

func TestWhoMayAsk(t *testing.T) {
	u := under(t, users)
	for uid, may := range map[uint32]bool{0: true, uint32(os.Geteuid()): true, 1001: false, 1002: true, 1003: false} {
		err := u.authority.MayAsk(mux.Owner{UID: uid, GID: 77})
		if (err == nil) != may || err != nil && !errors.Is(err, os.ErrPermission) {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
	if _, err := u.Endpoints(control.Peer{UID: 1001}); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "operator: true") {
		t.Errorf("Endpoints: %v", err)
	}
	if _, err := u.Counters(control.Peer{UID: 1001}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("Counters: %v", err)
	}
}
