//go:build linux

// Package doctor examines whether and how well unetd can run on this system, for unetd doctor.
//
// It probes what can be probed: it asks the kernel for each feature, and opens an endpoint on a veth
// pair in a network namespace that only this process has ([selfTest]). It reads the rest. It
// changes nothing; the kernel may load the modules veth and ifb, which unetd needs too.
//
// Each [Finding] has a [Verdict]. A problem keeps unetd from starting or from working as documented.
// A note is what an operator may want to change, or what could not be seen, mostly for want of
// privilege.
package doctor
