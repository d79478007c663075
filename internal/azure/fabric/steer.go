package fabric

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"packetwalk.dev/internal/kernel/netns"
)

// spreadReceive makes the links that come into a namespace from now on spread what they receive over the processors, each flow
// to one of them, as the receive queues of Azure's NICs do (receive packet steering, Documentation/networking/scaling.rst). A
// veth left alone works on the sender's processor through all hops to the receiver, and on two when sender and receiver take
// turns, which reorders the flow. Kernels before 6.3 have no such default for namespaces; there all stays with the sender.
func spreadReceive(ns *netns.Namespace) error {
	mask, err := allowedCPUs()
	if err != nil {
		return err
	}
	err = ns.SetSysctls(netns.Sysctl{Key: "net/core/rps_default_mask", Value: mask})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// allowedCPUs returns the mask of the processors that this process may use, in hexadecimal (proc_pid_status(5)).
func allowedCPUs() (string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", fmt.Errorf("which processors there are: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "Cpus_allowed:"); ok {
			return strings.TrimSpace(mask), nil
		}
	}
	return "", errors.New("which processors there are: /proc/self/status has no Cpus_allowed")
}
