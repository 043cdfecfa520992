//go:build linux

// Package readme runs the commands of README.md's quickstart and compares the output with
// what README.md says. It has tests only; they need root, AF_XDP, iproute2
// and util-linux.
package readme
