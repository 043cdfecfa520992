// Package badday sends text over a bad network, between unet and the Linux kernel or unet,
// and expects all of it, byte for byte.
//
// A scene is two hosts on a cable that is cut, with an impaired link in the middle
// (internal/netlab/impair): one of ours on host A, the kernel or another of ours on B. Each
// test is one kind of bad day. Both sides send at once, so each direction carries
// text and acknowledgments.
//
// What we send is captured before the link, what the peer sends behind it, so that
// the capture holds what our stack has said and what it has heard. Package wiretap
// judges it, and so does tshark.
//
// The seeds are fixed, so frame n of a direction always has the same fate. What is in
// it depends on the timing of both sides, so no two runs are the same.
package badday
