//go:build linux

// Package test runs the whole of unet: two hosts on a veth pair, unetd on each,
// processes without privilege, and the Linux kernel as the peer. It has tests
// only; they need root and AF_XDP, and are skipped without them unless
// UNET_REQUIRE_XDP=1.
package test
