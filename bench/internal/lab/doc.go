// Package lab is where measurements take place: up to three pairs of hosts, and
// the processes on them.
//
//	            host a                      host b
//	muxed   unetd, client (cpu 0)  ─────  unetd, server (cpu 1)
//	crowd   unetd, client (cpu 0)  ─────  unetd, server (cpu 1), and 255 endpoints on either host
//	plain          client (cpu 0)  ─────         server (cpu 1)
//
// The muxed pair carries the mux's XDP programs, attached by one unetd a host,
// which idles while something is measured. The plain pair is the same in all
// but that, so that baselines of the kernel are not slowed by what they are
// compared with.
//
// On the muxed pair two endpoints of host a can be measured as well. For goodput both
// pairs have an impaired link in the middle (package impair).
//
// Each measurement runs in two fresh processes of uid nobody, without
// capabilities, pinned to one processor each (package child).
package lab
