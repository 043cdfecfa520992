//go:build linux

// Package unetd builds the project's commands and runs them on hosts of package
// netlab: what the tests of the whole share.
package unetd
