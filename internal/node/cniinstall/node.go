package cniinstall

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/filelock"
	"packetwalk.dev/internal/base/limitio"
)

// The directories, as the record names them.
const (
	binDir  = "bin"
	confDir = "conf"
)

// recordName is no name of a network configuration for runtimes, which look at the end of names.
const recordName = "packetwalk-cni.installed"

// lockTime is how long another process may be at work in the same directories.
const lockTime = 20 * time.Second

// place is a file's directory and name.
type place struct{ dir, name string }

func (p place) key() string { return p.dir + "/" + p.name }

func placeOf(key string) place {
	dir, name, _ := strings.Cut(key, "/")
	return place{dir, name}
}

// file is one that is to be.
type file struct {
	place
	data []byte
	mode fs.FileMode
}

// record is what was written: by directory and name the SHA-256 hashes, in hexadecimal, that the file may have. While an installation is
// under way there are several, of what was there before and of what comes.
type record struct {
	Owner string              `json:"owner"`
	Files map[string][]string `json:"files"`
}

func (r record) has(p place, hash string) bool { return slices.Contains(r.Files[p.key()], hash) }

func (r record) equal(o record) bool {
	return r.Owner == o.Owner && maps.EqualFunc(r.Files, o.Files, slices.Equal[[]string])
}

// check rejects a record that packetwalk cannot have written.
func (r record) check() error {
	for key := range r.Files {
		if p := placeOf(key); p.dir != binDir && p.dir != confDir || !fileName.MatchString(p.name) {
			return fmt.Errorf("%q is no file of a node's", key)
		}
	}
	return nil
}

// node holds the open directories of a node and the files to install there. No other process changes the directories meanwhile.
type node struct {
	dirs   map[string]*os.Root
	lock   *os.File
	record record
	wanted []file              // plugins first
	kept   map[string][]string // of the record, beside those
}

// open opens the directories and takes their lock.
func open(d Dirs) (n *node, err error) {
	n = &node{dirs: map[string]*os.Root{}, kept: map[string][]string{}}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	for name, path := range map[string]string{binDir: d.Bin, confDir: d.Conf} {
		root, f, err := openDir(path)
		if err != nil {
			return n, err
		}
		n.dirs[name] = root
		if name == confDir {
			n.lock = f
		} else {
			f.Close()
		}
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), lockTime, filelock.ErrHeld)
	defer cancel()
	if err := filelock.Take(ctx, n.lock, nil); err != nil {
		return n, fmt.Errorf("%s: %w", d.Conf, err)
	}
	return n, n.readRecord()
}

func (n *node) close() {
	for _, root := range n.dirs {
		root.Close()
	}
	if n.lock != nil {
		n.lock.Close()
	}
}

// openDir opens a directory that belongs to this process's user and is not world-writable. No part of its path may be a symbolic link.
func openDir(path string) (*os.Root, *os.File, error) {
	how := unix.OpenHow{Flags: unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if errors.Is(err, unix.ELOOP) {
		return nil, nil, fmt.Errorf("open %s: a link is on the way; write the path that it leads to", path)
	}
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o002 != 0) {
		err = fmt.Errorf("%s belongs to another user or is world-writable; make it root's, with mode 0755", path)
	}
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd)) // the directory that is open, whatever has its name now
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return root, f, nil
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// hash is a file's, empty where there is none. What is no plain file, or larger than any of ours, has one that no file of ours has.
func (n *node) hash(at place, limit int64) (string, error) {
	const others = "of others"
	info, err := n.dirs[at.dir].Lstat(at.name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() > limit {
		return others, err
	}
	f, err := n.dirs[at.dir].OpenFile(at.name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(f, limit+1)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func (n *node) write(at place, data []byte, mode fs.FileMode) error {
	if err := atomicfile.WriteIn(n.dirs[at.dir], at.name, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", at.name, err)
	}
	return nil
}

func (n *node) readRecord() error {
	f, err := n.dirs[confDir].OpenFile(recordName, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := limitio.Read(f, maxConfig)
	if err == nil {
		err = json.Unmarshal(text, &n.record)
	}
	if err == nil {
		err = n.record.check()
	}
	if err != nil {
		return fmt.Errorf("the record %s cannot be read: %w; remove it, and what was installed, by hand", recordName, err)
	}
	return nil
}

func (n *node) writeRecord(r record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return n.write(place{confDir, recordName}, append(text, '\n'), 0o600)
}

func (n *node) removeRecord() error { return n.remove(place{confDir, recordName}) }

func (n *node) remove(at place) error {
	err := n.dirs[at.dir].Remove(at.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeFiles removes those of a record that are as they were written, configurations first, and notes the others.
func (n *node) removeFiles(r record) (notes []string, err error) {
	keys := slices.Sorted(maps.Keys(r.Files))
	slices.Reverse(keys) // conf comes after bin
	for _, key := range keys {
		at := placeOf(key)
		have, err := n.hash(at, maxPlugin)
		if err != nil {
			return notes, err
		}
		switch {
		case have == "":
		case !r.has(at, have):
			notes = append(notes, at.name+" is not as it was installed: it stays")
		default:
			if err := n.remove(at); err != nil {
				return notes, err
			}
		}
	}
	return notes, nil
}

func (n *node) names(dir string) ([]string, error) {
	f, err := n.dirs[dir].Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// temporary matches the names under which files are made before they have their own (atomicfile).
var temporary = regexp.MustCompile(`^\.(.+)\.[0-9]{1,20}$`)

// removeTemporary removes what one who was killed while writing has left of the files of a record.
func (n *node) removeTemporary(r record) error {
	for dir := range n.dirs {
		names, err := n.names(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			m := temporary.FindStringSubmatch(name)
			if m == nil || m[1] != recordName && r.Files[place{dir, m[1]}.key()] == nil {
				continue
			}
			if info, err := n.dirs[dir].Lstat(name); err != nil || !info.Mode().IsRegular() {
				continue
			}
			if err := n.remove(place{dir, name}); err != nil {
				return err
			}
		}
	}
	return nil
}
