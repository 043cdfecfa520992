//go:build linux

// Package tcp runs unet's TCP against the Linux kernel's, in both roles, and
// judges every segment that unet sends.
//
// A scene is two hosts on a cable: one of ours on host A, the kernel on host B.
// All frames are captured on B's end of the cable and judged by package wiretap, and
// by tshark. The kernel's counters of malformed segments are checked too.
//
// The tests need root and AF_XDP, and are skipped without them unless
// UNET_REQUIRE_XDP=1. Where there is no tshark only its part is left out, unless
// UNET_REQUIRE_TOOLS=1.
package tcp
