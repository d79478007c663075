package metrics

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

var started = time.Now()

// AddProcess adds the metrics of this process that operators look at, by the names of Prometheus's own library.
func (m *Registry) AddProcess() {
	m.AddRead("gauge", "process_resident_memory_bytes", "Memory of the process that is in RAM.", func() (pages float64, err error) {
		text, err := os.ReadFile("/proc/self/statm")
		if err == nil {
			_, err = fmt.Sscanf(string(text), "%f %f", new(float64), &pages)
		}
		return pages * float64(os.Getpagesize()), err
	})
	m.AddRead("counter", "process_cpu_seconds_total", "Time on a CPU.", func() (float64, error) {
		var used unix.Rusage
		err := unix.Getrusage(unix.RUSAGE_SELF, &used)
		return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9, err
	})
	m.AddRead("gauge", "process_start_time_seconds", "When the process started.", func() (float64, error) {
		return float64(started.UnixNano()) / 1e9, nil
	})
	m.AddRead("gauge", "process_open_fds", "Files and sockets that are open.", func() (float64, error) {
		files, err := os.ReadDir("/proc/self/fd")
		return float64(len(files)), err
	})
	m.AddRead("gauge", "go_goroutines", "Goroutines.", func() (float64, error) { return float64(runtime.NumGoroutine()), nil })
}
