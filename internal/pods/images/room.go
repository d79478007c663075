package images

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// measureEvery is after how many bytes the store is measured again.
const measureEvery = 64 << 20

// A fullError says that the store, or its disk, has no room for more.
type fullError struct{ reason, dir string }

func (e *fullError) Error() string {
	return fmt.Sprintf("the image store %s is full: %s; remove images ('packetwalk image rm'), or set XDG_CACHE_HOME to a folder on another disk",
		e.dir, e.reason)
}

// checkRoom returns a *fullError if so many bytes would bring the store over its limit, or leave too little of its disk. It counts what all
// processes have in the store, and their stages.
func (s *Store) checkRoom(more int64) error {
	size := more
	err := fs.WalkDir(s.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil && (!strings.HasPrefix(name, tmpDir+"/") || !isLinked(info)) {
				size += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // removed or renamed meanwhile
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if size > s.most.store {
		return &fullError{fmt.Sprintf("images take at most %s", amount(s.most.store)), s.dir}
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(s.dir, &disk); err != nil {
		return fmt.Errorf("measure the disk of %s: %w", s.dir, err)
	}
	keep := min(s.most.spare, int64(disk.Blocks)*disk.Bsize/10)
	if int64(disk.Bavail)*disk.Bsize-more < keep {
		return &fullError{fmt.Sprintf("images leave %s of its disk free", amount(keep)), s.dir}
	}
	return nil
}

// isLinked reports whether a file of a stage is also a blob of the store.
func isLinked(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink > 1
}

// amount returns a number of bytes as people read it.
func amount(bytes int64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%d GiB", bytes>>30)
	}
	return fmt.Sprintf("%d bytes", bytes)
}
