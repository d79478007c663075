package netns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/procstat"
)

// Processes lists the pids of all processes whose network namespace is one of those with these inode numbers, lowest first: what is left to
// end when a lab's own process is gone. A process that ends meanwhile is left out, and so is one that root may not look at, which is not a
// lab's.
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
		if inode, err := namespaceOf(e.Name()); err == nil && slices.Contains(inodes, inode) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// namespaceOf returns the network namespace of a process, by its name in /proc; an error when it has ended, or is a zombie.
func namespaceOf(pid string) (inode uint64, err error) {
	target, err := os.Readlink("/proc/" + pid + "/ns/net")
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(target, "net:["), "]"), 10, 64)
}

// Foreign returns the network namespace of a process that lives in another one than this process; false when it does not, or has ended.
func Foreign(pid int) (inode uint64, foreign bool) {
	inode, err := namespaceOf(strconv.Itoa(pid))
	own, failed := namespaceOf("self")
	return inode, err == nil && failed == nil && inode != own
}

// killTimeout is how long Kill waits for the next process to end. One that does not end sleeps in the kernel, and nothing helps.
const killTimeout = 10 * time.Second

// Kill kills (SIGKILL) the processes whose pids list gives until it gives none: between two looks a dying process may have started another.
// It is an error when none has ended for ten seconds, or when ctx ends.
func Kill(ctx context.Context, list func() ([]int, error)) error {
	progress, fewest := time.Now(), math.MaxInt
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
		if len(pids) < fewest {
			progress, fewest = time.Now(), len(pids)
		}
		if time.Since(progress) > killTimeout || !pause.For(ctx, 5*time.Millisecond) {
			return fmt.Errorf("processes %v do not end within %v: %w", pids, killTimeout, cmp.Or(ctx.Err(), context.DeadlineExceeded))
		}
	}
}

// KillIn kills all processes whose network namespace is one of these. It takes open namespaces, not their numbers. The kernel reuses the
// number of a removed namespace for the next one, which may belong to any process.
func KillIn(ctx context.Context, namespaces ...*Namespace) error {
	var inodes []uint64
	for _, ns := range namespaces {
		inodes = append(inodes, ns.Inode())
	}
	return Kill(ctx, func() ([]int, error) { return Processes(inodes...) })
}

// OpenMounted opens the namespaces that are mounted below dir. What was removed meanwhile is left out.
func OpenMounted(dir string) ([]*Namespace, error) {
	found, err := Mounted(dir)
	if err != nil {
		return nil, err
	}
	return openAll(slices.Collect(maps.Keys(found)))
}

// OpenOf opens the namespaces of processes but that of this process. Processes that have ended have none.
func OpenOf(pids ...int) ([]*Namespace, error) {
	own, err := namespaceOf("self")
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, pid := range pids {
		paths = append(paths, fmt.Sprintf("/proc/%d/ns/net", pid))
	}
	opened, err := openAll(paths)
	return slices.DeleteFunc(opened, func(ns *Namespace) bool {
		if ns.Inode() == own {
			_ = ns.Close() // read only: closing loses nothing
		}
		return ns.Inode() == own
	}), err
}

// openAll opens the namespaces at those of the paths where there is one, or none.
func openAll(paths []string) (opened []*Namespace, err error) {
	for _, path := range paths {
		ns, err := Open(path)
		if procstat.Ended(err) {
			continue
		}
		if err != nil {
			CloseAll(opened)
			return nil, err
		}
		opened = append(opened, ns)
	}
	return opened, nil
}

// CloseAll closes namespaces.
func CloseAll(namespaces []*Namespace) {
	for _, ns := range namespaces {
		_ = ns.Close() // read only: closing loses nothing
	}
}

// Mounted lists the paths below dir where namespaces are mounted, with their inode numbers. A dir that is not there holds none.
func Mounted(dir string) (map[string]uint64, error) {
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
