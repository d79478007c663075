package cgroup

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/sysctl"
)

// Bounds are derived from the machine.
type Bounds struct {
	Lab          Limits // of all of a lab's nodes together: they leave the machine enough to end them
	Node         Limits // of a node: it leaves the lab's others a quarter
	PodProcesses int64  // the most processes and threads of a pod
}

// Machine returns this machine's bounds.
func Machine() (b Bounds, err error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return b, fmt.Errorf("memory of the machine: %w", err)
	}
	pids, err := sysctl.ReadInt("kernel/pid_max")
	if err != nil {
		return b, err
	}
	return bounds(int64(info.Totalram)*int64(info.Unit), int64(pids), int64(runtime.NumCPU())), nil
}

func bounds(memory, pids, processors int64) Bounds {
	lab := Limits{Memory: memory - max(memory/8, min(1<<30, memory/2)), Processes: pids * 3 / 4, Weight: 4096 * processors}
	return Bounds{
		Lab:          lab,
		Node:         Limits{Memory: lab.Memory / 4 * 3, Processes: lab.Processes / 4 * 3},
		PodProcesses: min(max(lab.Processes/16, 256), 4096),
	}
}
