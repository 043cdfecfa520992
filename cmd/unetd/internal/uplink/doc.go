// Package uplink is the mux as unetd uses it: found fit to run here or told why not
// ([Check]), opened ([Open]) with the policy of package policy, and offered to applications
// as a control.Provider. Leases are the mux's own.
//
// The errors of this package are for an operator: one line that says what is wrong and
// what to do.
package uplink
