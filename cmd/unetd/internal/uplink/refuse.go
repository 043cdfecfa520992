package uplink

import (
	"fmt"
	"os"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
)

// What an application is told when the policy is against it. Its user reads
// that, and passes it on to whoever can change it.

func nameRule(r *policy.Rule, of *policy.Policy) string {
	if of.File == "" {
		return of.String()
	}
	return fmt.Sprintf("rule %s of %s", r.Name, of)
}

// noRule is the reason where no rule is for a user.
func noRule(interfaceName string, of *policy.Policy, peer control.Peer) string {
	if of.File == "" {
		return fmt.Sprintf("uid %d on %s: without a policy file only uid 0 gets endpoints: ask an operator to write %s and to reload unetd",
			peer.UID, interfaceName, policy.DefaultFile)
	}
	return fmt.Sprintf("no rule of %s is for uid %d on %s: ask an operator to add one and to reload unetd", of, peer.UID, interfaceName)
}

func refuseUser(interfaceName string, of *policy.Policy, peer control.Peer) error {
	return fmt.Errorf("%w: %s", os.ErrPermission, noRule(interfaceName, of, peer))
}

// refuseUserTag is for who has an endpoint already, from before a reload.
func refuseUserTag(t endpoint.Tag, interfaceName string, of *policy.Policy, peer control.Peer) error {
	return fmt.Errorf("%w: %v: %s", endpoint.ErrTagDenied, t, noRule(interfaceName, of, peer))
}

func refuseEndpoints(interfaceName string, r *policy.Rule, of *policy.Policy, peer control.Peer) error {
	return fmt.Errorf("%w: %s gives uid %d no endpoints on %s", os.ErrPermission, nameRule(r, of), peer.UID, interfaceName)
}

func refuseQueue(interfaceName string, r *policy.Rule, of *policy.Policy, peer control.Peer) error {
	return fmt.Errorf("%w: %s gives uid %d no queues of %s: attach to a port, or ask an operator for trusted: true",
		os.ErrPermission, nameRule(r, of), peer.UID, interfaceName)
}

func refuseTag(t endpoint.Tag, r *policy.Rule, of *policy.Policy, peer control.Peer) error {
	why := "ask an operator to add it to the tags of the rule"
	if t.Port != 0 && r.Choices(t, 1, 1).Count() > 0 {
		why = fmt.Sprintf("its port * does not stand for ports below %d: ask an operator to name the port in the rule", policy.Floor(peer.UID))
	}
	return fmt.Errorf("%w: %v: %s does not permit it to uid %d: %s", endpoint.ErrTagDenied, t, nameRule(r, of), peer.UID, why)
}

// refuseNAT is for ports that network address translation may give to flows of others,
// whose answers the endpoint would get.
func refuseNAT(t endpoint.Tag, r *policy.Rule, of *policy.Policy, ports *nat.Ports) error {
	what := "this port"
	switch {
	case t.Block:
		what = "ports of this block"
	case t.Port == 0:
		what = "every port that the rule permits"
	}
	return fmt.Errorf("%w: %v: network address translation on this host may use %s for others (%s): ask an operator to keep it to a range of ports (masquerade to :40000-65535), or for nat: warn in %s",
		endpoint.ErrTagDenied, t, what, ports.MayUseBy(), nameRule(r, of))
}

func refuseOperator(peer control.Peer) error {
	return fmt.Errorf("%w: uid %d may not list endpoints or read counters: ask root, or for operator: true in a rule", os.ErrPermission, peer.UID)
}
