//go:build linux

// Package wiretap captures the frames on a cable and judges every TCP segment that
// unet sends.
//
// Each frame of ours is decoded and checked at once (judge.go): checksums, the window
// and the segment size that the kernel has offered, no gap, no byte sent again without a
// reason, no window taken back, options as negotiated. At the end tshark reads
// the capture, and its decoded segments are judged in the same way, with its
// own messages (oracle.go). Without tshark only its part is left out,
// unless UNET_REQUIRE_TOOLS=1.
package wiretap
