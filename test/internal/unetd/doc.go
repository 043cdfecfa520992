//go:build linux

// Package unetd builds the project's commands and runs them on hosts of package
// netlab, for the tests that run the whole of unet.
package unetd
