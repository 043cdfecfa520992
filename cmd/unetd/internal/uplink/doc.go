// Package uplink is the mux as unetd uses it: found fit to run here or told
// why not ([Check]), opened ([Open]), and offered to applications as a
// control.Provider.
//
// The errors of this package are for an operator, or for an application's
// user: one line that says what and what to do.
//
// # Who may claim what
//
// Whoever may connect to the socket may claim, and the mode of the socket says
// who that is. Two things are kept back, in policy.go: a queue of the interface
// is given out only if the operator said so, because its owner reads and can
// starve that queue and sends unchecked; and UDP ports that the kernel keeps for
// root (ip_unprivileged_port_start) are root's here too. The adapter's
// OpenEndpoint and its lease are where a policy is asked, before the mux is: the
// peer, whom the kernel vouches for, and the request stand side by side there.
package uplink
