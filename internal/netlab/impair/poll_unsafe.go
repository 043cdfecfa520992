package impair

import (
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sleep is ppoll without a word to Go's scheduler. After a system call that the
// scheduler knows of, the thread has to wait for one of the runtime's processors,
// which takes milliseconds if all of them compute. This way it keeps its own. A
// signal, and the runtime sends one to stop the thread for garbage collection, ends
// the sleep.
func sleep(fds []unix.PollFd, timeout *unix.Timespec) {
	unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(timeout)), 0, 0, 0)
}

var processors sync.Mutex

// addProcessors changes how many processors the runtime has.
func addProcessors(n int) {
	processors.Lock()
	defer processors.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}
