// Package uplink is the mux as unetd uses it: found fit to run here or told
// why not ([Check]), opened ([Open]), and offered to applications as a
// control.Provider.
//
// The errors of this package are for an operator: one line that says what and
// what to do.
//
// # Who may claim what
//
// Whoever may connect to the socket may claim, and the mode of the socket says
// who that is. The one place where unetd will ask a policy is the adapter's
// OpenEndpoint in adapter.go: there the peer, whom the kernel vouches for, and
// the request stand side by side, before anything was made, and there the lease
// begins through which later claims come.
package uplink
