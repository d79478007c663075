package container_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/testing/kerneltest"
)

// BenchmarkStart starts one container after the other and leaves them running: the CPU time of a start, ours and the container's until it
// runs, and what an idle one costs in memory with its shim when all of them run (PSS: what they share is counted once).
func BenchmarkStart(b *testing.B) {
	kerneltest.NeedRoot(b)
	application, command := imaged(b, "whereami"), imaged(b, "ubuntu", "sleep", "1000")
	b.Run("application", func(b *testing.B) { benchmarkStart(b, application) })
	b.Run("command", func(b *testing.B) { benchmarkStart(b, command) })
	node := imaged(b, "pause") // a light node's, below whose process namespace are those of its containers
	node.Dir = filepath.Join(b.TempDir(), "node")
	c, err := newRuntime(binary).Start(context.Background(), node)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Remove()
	application.ProcessesBelow, command.ProcessesBelow = node.Dir, node.Dir
	b.Run("application below", func(b *testing.B) { benchmarkStart(b, application) })
	b.Run("command below", func(b *testing.B) { benchmarkStart(b, command) })
}

func benchmarkStart(b *testing.B, s container.Spec) {
	r := newRuntime(binary)
	dir := b.TempDir()
	var all []*container.Container
	b.Cleanup(func() {
		for _, c := range all {
			if err := c.Remove(); err != nil {
				b.Error(err)
			}
		}
	})
	before := cpuTime(b, syscall.RUSAGE_SELF)
	for b.Loop() {
		s.Dir = filepath.Join(dir, strconv.Itoa(len(all)))
		s.LogPath = filepath.Join(dir, "logs", strconv.Itoa(len(all)))
		c, err := r.Start(context.Background(), s)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, c)
	}
	ours := cpuTime(b, syscall.RUSAGE_SELF) - before
	time.Sleep(100 * time.Millisecond)
	var pss, cpu, threads int
	for _, c := range all {
		pids := []int{c.Pid()}
		if parent := number(b, c.Pid(), "status", "PPid:"); parent != os.Getpid() {
			pids = append(pids, parent)
		}
		for _, pid := range pids {
			pss += number(b, pid, "smaps_rollup", "Pss:")
			threads += number(b, pid, "status", "Threads:")
			cpu += theirs(b, pid)
		}
	}
	n := len(all)
	b.ReportMetric(float64(pss)/float64(n), "kB-PSS/container")
	b.ReportMetric(float64(ours.Microseconds())/1000/float64(n), "own-ms-CPU/start")
	b.ReportMetric(float64(cpu)/1e6/float64(n), "container-ms-CPU/start")
	b.ReportMetric(float64(threads)/float64(n), "threads/container")
}

func cpuTime(b *testing.B, of int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(of, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// theirs is the CPU time of a process in nanoseconds, from each thread's schedstat (kernel: Documentation/scheduler/sched-stats.rst).
func theirs(b *testing.B, pid int) (ns int) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			b.Fatal(err)
		}
		n, err := strconv.Atoi(strings.Fields(string(data))[0])
		if err != nil {
			b.Fatal(err)
		}
		ns += n
	}
	return ns
}

// number is one of a file of a process: kilobytes, or a count.
func number(b *testing.B, pid int, file, name string) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), name)
	fields := strings.Fields(rest)
	if !ok || len(fields) == 0 {
		b.Fatalf("%s has no %s", file, name)
	}
	n, err := strconv.Atoi(fields[0])
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkExec is a command in a container: the CPU time of it, ours and that of all that is started, and the median of its time.
func BenchmarkExec(b *testing.B) {
	kerneltest.NeedRoot(b)
	s := imaged(b, "ubuntu", "sleep", "1000")
	s.Dir = filepath.Join(b.TempDir(), "c")
	c, err := newRuntime(binary).Start(context.Background(), s)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Remove()
	var all []time.Duration
	before := cpuTime(b, syscall.RUSAGE_SELF) + cpuTime(b, syscall.RUSAGE_CHILDREN)
	for b.Loop() {
		start := time.Now()
		if code, err := c.Exec(context.Background(), container.Exec{Args: []string{"true"}}); code != 0 || err != nil {
			b.Fatal(code, err)
		}
		all = append(all, time.Since(start))
	}
	cpu := cpuTime(b, syscall.RUSAGE_SELF) + cpuTime(b, syscall.RUSAGE_CHILDREN) - before
	slices.Sort(all)
	b.ReportMetric(float64(cpu.Microseconds())/1000/float64(len(all)), "ms-CPU/exec")
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-median/exec")
}
