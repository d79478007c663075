package conflict

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/procstat"
)

// maxText is how much of a process's files is read, in bytes: a command line may have megabytes of arguments.
const maxText = 64 << 10

// processes lists those below proc (/proc) that run in this network namespace and by is takes, which gets the directory of one. Processes
// of another pid namespace are not seen, nor those that the machine's policy hides (SELinux).
func processes(proc, name string, is func(dir string) (bool, error)) (found []string, err error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		matches, err := is(dir)
		if err == nil && matches {
			matches, err = sameNetwork(dir, filepath.Join(proc, "self"))
		}
		switch {
		case unseen(err):
		case err != nil:
			return nil, fmt.Errorf("look at process %d: %w", pid, err)
		case matches:
			found = append(found, fmt.Sprintf("%s (pid %d)", name, pid))
		}
	}
	return found, nil
}

// unseen reports whether a process has ended while it was looked at (proc(5)), or may not be looked at.
func unseen(err error) bool {
	return procstat.Ended(err) || errors.Is(err, fs.ErrPermission)
}

// isKubeProxy reports whether a process is kube-proxy, by its directory in /proc. Its name is that of the file that it was started from,
// without the directory (proc_pid_comm(5)). hyperkube, one program for all of Kubernetes' until 1.19, is kube-proxy by its first argument.
// The link to the program is not read: that takes the right to trace the process. Of most processes one short file is read, because a
// machine may have many nodes, and each looks at all of them.
func isKubeProxy(dir string) (bool, error) {
	name, err := head(filepath.Join(dir, "comm"))
	if err != nil {
		return false, err
	}
	switch strings.TrimSuffix(string(name), "\n") {
	case "kube-proxy":
	case "hyperkube":
		line, err := head(filepath.Join(dir, "cmdline"))
		if args := strings.Split(string(line), "\x00"); err != nil || len(args) < 2 || args[1] != "proxy" && args[1] != "kube-proxy" {
			return false, err
		}
	default:
		return false, nil
	}
	return isRoots(dir)
}

// isMasqAgent reports whether a process, by its directory in /proc, is an ip-masq-agent of any version. A name has at most 15 bytes.
func isMasqAgent(dir string) (bool, error) {
	name, err := head(filepath.Join(dir, "comm"))
	if err != nil || !strings.HasPrefix(string(name), "ip-masq-agent") {
		return false, err
	}
	return isRoots(dir)
}

// isRoots reports whether a process runs and belongs to root. Only root can write rules, but any user can have a process of any name.
func isRoots(dir string) (bool, error) {
	text, err := head(filepath.Join(dir, "status"))
	if err != nil {
		return false, err
	}
	status := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.TrimSpace(value)
	}
	// proc_pid_status(5): real, effective, saved, file system. A zombie does nothing.
	uids := strings.Fields(status["Uid"])
	return len(uids) > 1 && uids[1] == "0" && !strings.HasPrefix(status["State"], "Z"), nil
}

// sameNetwork reports whether two processes, by their directories in /proc, are in the same network namespace. Each namespace has its own
// files in /proc/PID/net (fs/proc/proc_net.c), so the number of one of them tells, where to read /proc/PID/ns/net takes the right to trace
// the process.
func sameNetwork(a, b string) (bool, error) {
	var stats [2]unix.Stat_t
	for i, dir := range []string{a, b} {
		if err := unix.Stat(filepath.Join(dir, "net", "dev"), &stats[i]); err != nil {
			return false, err
		}
	}
	return stats[0].Dev == stats[1].Dev && stats[0].Ino == stats[1].Ino, nil
}

// head reads the beginning of a file, at most maxText bytes.
func head(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxText))
}
