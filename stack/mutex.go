//go:build !unetdebug

package stack

import "sync"

// stackMutex is the stack's lock.
type stackMutex = sync.Mutex
