package wire

import "syscall"

const errNoNet = syscall.ENONET
