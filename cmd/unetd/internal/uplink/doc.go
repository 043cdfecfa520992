// Package uplink is the mux as unetd uses it: found fit to run here or told
// why not ([Check]), opened ([Open]), and offered to applications as a
// control.Provider.
//
// The errors of this package are for an operator, or for an application's
// user: one line that says what and what to do.
//
// # Who may have what
//
// The adapter's OpenEndpoint and its lease are where the policy (package policy)
// and the quotas (package quota) are asked, before the mux is: the peer, whom the
// kernel vouches for, and the request stand side by side there. The policy is
// asked about a request to open, and about each tag that is claimed, by the rules
// of that moment; what was granted is not asked about again, so neither a reload
// nor a restart takes anything away.
//
// A claim may leave its port, its message tag or its address to be chosen. What
// is granted is within the rule all the same: see the lease's method choose.
//
// An endpoint counts from the request until the mux says that nothing is left of
// it, which may be long after the end of its lease.
package uplink
