//go:build linux

// Package impaired sends data over an impaired network, between unet and the Linux kernel or unet,
// and expects all of it, byte for byte.
//
// A scene is two hosts on a cable that is cut, with an impaired link in the middle
// (internal/netlab/impair): one of ours on host A, the kernel or another of ours on B. Each
// test is one kind of impairment. Both sides send at once, so each direction carries
// data and acknowledgments.
//
// What we send is captured before the link, what the peer sends behind it, so that
// the capture holds what our stack has sent and received. Package wiretap and tshark
// check it.
//
// The seeds are fixed, so frame n of a direction is always treated in the same way. Its content
// depends on the timing of both sides, so runs differ.
package impaired
