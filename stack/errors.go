package stack

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// SysError is err under the name of a system call, the one that package net would have
// made, if err is an errno that has no such name yet.
func SysError(call string, err error) error {
	var errno syscall.Errno
	var named *os.SyscallError
	if !errors.As(err, &errno) || errors.As(err, &named) {
		return err
	}
	return os.NewSyscallError(call, err)
}

// opError is err as package net has it.
func opError(op, network, call string, source, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Source: source, Addr: addr, Err: SysError(call, err)}
}
