package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/pause"
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

// killTimeout is how long Kill waits for processes to end. One that does not sleeps in the kernel, and nothing helps.
const killTimeout = 10 * time.Second

// Kill kills (SIGKILL) the processes whose pids list gives until it gives none: between two looks a dying process may have started another.
// It is an error when there are still some after ten seconds, or when ctx ends.
func Kill(ctx context.Context, list func() ([]int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	for {
		pids, err := list()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill %d: %w", pid, err)
			}
		}
		if !pause.For(ctx, 5*time.Millisecond) {
			return fmt.Errorf("processes %v do not end: %w", pids, ctx.Err())
		}
	}
}

// KillIn kills all processes whose network namespace is one of those with these inode numbers.
func KillIn(ctx context.Context, inodes ...uint64) error {
	return Kill(ctx, func() ([]int, error) { return Processes(inodes...) })
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
