package container

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread calls f on a thread of its own and waits for it. f returns whether the thread is as it was; otherwise it ends with f, whose
// namespaces and capabilities nobody else gets: the runtime makes new threads from a clean one. It is never the process's first thread,
// which cannot end and which /proc/self shows.
func OnThread(f func() (clean bool)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			OnThread(f) // while this goroutine keeps the first thread, another one is found
			runtime.UnlockOSThread()
			return
		}
		if f() {
			runtime.UnlockOSThread()
		}
	}()
	<-done
}
