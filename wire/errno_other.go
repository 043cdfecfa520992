//go:build !linux

package wire

import "syscall"

// errNoNet stands for Linux's ENONET, which not every system has.
const errNoNet = syscall.EHOSTUNREACH
