// Package wiretap captures what goes over a cable and judges every segment of TCP that
// unet sends.
//
// Each frame of ours is decoded and checked at once (judge.go): checksums, the window
// and the segment size that the kernel has offered, no gap, no byte sent again without a
// reason, no window taken back, options as they were agreed on. At the end tshark reads
// the capture, and what it makes of the segments is judged in the same way, with its
// own objections (oracle.go). Where there is no tshark only its part is left out,
// unless UNET_REQUIRE_TOOLS=1.
package wiretap
