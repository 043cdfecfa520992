//go:build unetdebug

package stack

import "sync"

// stackMutex is the stack's lock. A test that tries all schedules decides which goroutine takes it next.
type stackMutex struct{ sync.Mutex }

// beforeLock is called before the lock of a stack is taken. It may be set only while
// there is no stack.
var beforeLock func()

func (m *stackMutex) Lock() {
	if beforeLock != nil {
		beforeLock()
	}
	m.Mutex.Lock()
}
