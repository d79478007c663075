package realnode

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Give copies an image's archive to the node with a State, once: what the node has of it, which it empties when it has imported it, stays.
// The node's processes may change the directory meanwhile.
func Give(state, archive string) error {
	dir, err := os.OpenRoot(filepath.Join(state, images))
	if err != nil {
		return err
	}
	defer dir.Close()
	name := filepath.Base(archive)
	if _, err := dir.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	in, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	next := fmt.Sprintf(".%s.%d", name, rand.Uint64())
	out, err := dir.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err == nil {
		err = dir.Rename(next, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(next))
	}
	return nil
}

// Processes are those in a control group, or in one below it, of any hierarchy (proc_pid_cgroup(5)).
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
