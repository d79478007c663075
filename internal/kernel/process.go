package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Processes lists the pids of all processes whose network namespace is one of those with these inode numbers, lowest first: what
// is left to end when a lab's own process is gone. A process that ends meanwhile is left out.
func Processes(inodes ...uint64) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		target, err := os.Readlink("/proc/" + e.Name() + "/ns/net")
		if err != nil {
			continue // ended, or a zombie
		}
		inode, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(target, "net:["), "]"), 10, 64)
		if err == nil && slices.Contains(inodes, inode) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// MountedNamespaces lists the paths below dir where namespaces are mounted, with their inode numbers. A dir that is not there holds none.
func MountedNamespaces(dir string) (map[string]uint64, error) {
	found := map[string]uint64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() || !mounted(path) {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return err
		}
		found[path] = st.Ino
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	return found, nil
}
