// Package account checks that the counters of a mux add up: that no frame disappears without a
// counter that says why.
//
// A program counts each frame that it runs on once, by the reason of its verdict, so
//
//	frames received = sum of rx_* = redirected + passed to the kernel + dropped + cut
//	frames sent by endpoints = sum of tx_* = redirected + dropped
//	frames sent by the mux for endpoints = sum of mux_* = redirected + dropped
//	frames that reach a port's inner end = sum of deliver_* = put into the socket + dropped
//
// holds by itself ([OutcomeOf] tells the parts). What can fail is the way between two programs. What
// the mux redirects to a port is counted again at its inner end, or as lost on the way; [Check]
// compares both sides. Package account uses names, not numbers, so that it can check the counters of
// another process.
package account
