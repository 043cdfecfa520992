//go:build !amd64

package transport

import "syscall"

const sysSendmmsg = syscall.SYS_SENDMMSG
