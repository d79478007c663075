package agent

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

var started = time.Now()

// addProcess adds what Prometheus's own library tells of a process that operators look at.
func (m *meters) addProcess() {
	m.addRead("gauge", "process_resident_memory_bytes", "Memory of the process that is in RAM.", func() (pages float64, err error) {
		text, err := os.ReadFile("/proc/self/statm")
		if err == nil {
			_, err = fmt.Sscanf(string(text), "%f %f", new(float64), &pages)
		}
		return pages * float64(os.Getpagesize()), err
	})
	m.addRead("counter", "process_cpu_seconds_total", "Time on a CPU.", func() (float64, error) {
		var used unix.Rusage
		err := unix.Getrusage(unix.RUSAGE_SELF, &used)
		return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9, err
	})
	m.addRead("gauge", "process_start_time_seconds", "When the process started.", func() (float64, error) {
		return float64(started.UnixNano()) / 1e9, nil
	})
	m.addRead("gauge", "process_open_fds", "Files and sockets that are open.", func() (float64, error) {
		files, err := os.ReadDir("/proc/self/fd")
		return float64(len(files)), err
	})
	m.addRead("gauge", "go_goroutines", "Goroutines.", func() (float64, error) { return float64(runtime.NumGoroutine()), nil })
}

// MetricNames returns the metrics that an agent of a backend has as the service proxy.
func MetricNames(backend string) []string {
	names := map[string]bool{}
	for _, m := range newMetrics(backend).all {
		names[m.name] = true
	}
	return slices.Sorted(maps.Keys(names))
}
