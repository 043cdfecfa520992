//go:build !unetdebug

package stack

import "sync"

// mutex is the stack's lock.
type mutex = sync.Mutex
