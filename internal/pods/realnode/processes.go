package realnode

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes returns those in a control group, or in one below it, of any hierarchy (proc_pid_cgroup(5)).
func Processes(cgroup string) (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(fields) != 3 || !strings.HasPrefix(fields[2]+"/", "/"+cgroup+"/") {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				pids = append(pids, pid)
			}
			break
		}
	}
	return pids, err
}
