package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"packetwalk.dev/internal/pods/app"
)

// The base is what the roots of all containers have below their writable layers: a directory that is made once, with folders, accounts, and
// copies of what app.Distribution has in /etc. It is never changed while a container may have it.

// everybodys is the mode of directories in which everybody may make files.
const everybodys = os.ModeSticky | 0o777

// directories are what every container has, empty.
var directories = map[string]os.FileMode{
	"proc": 0o555, "sys": 0o555, "dev": 0o755, "root": 0o700, "home": 0o755, "mnt": 0o755, "media": 0o755, "opt": 0o755, "srv": 0o755,
	"tmp": everybodys, "run/lock": everybodys, "var/tmp": everybodys,
	"var/cache": 0o755, "var/lib": 0o755, "var/log": 0o755, "var/spool": 0o755,
}

// files are those that are made and not the machine's. The accounts are those that programs look for: tcpdump gives its rights to the one
// of its name. The prompt is the one of the distributions' images.
var files = map[string]string{
	"etc/passwd": `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
tcpdump:x:72:72::/nonexistent:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`,
	"etc/group":       "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\nwww-data:x:33:\ntcpdump:x:72:\nnogroup:x:65534:\n",
	"etc/bash.bashrc": `PS1='\u@\h:\w\$ '` + "\n",
}

// base gives the base's path, and makes it if no process has.
func (r *Runtime) base() (string, error) {
	r.making.Lock()
	defer r.making.Unlock()
	if _, err := os.Lstat(r.Base); !errors.Is(err, fs.ErrNotExist) {
		return r.Base, err
	}
	if err := os.MkdirAll(filepath.Dir(r.Base), 0o700); err != nil {
		return "", err
	}
	next, err := os.MkdirTemp(filepath.Dir(r.Base), filepath.Base(r.Base)+".")
	if err != nil {
		return "", err
	}
	err = makeBase(next)
	if err == nil {
		err = os.Rename(next, r.Base)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("make the base of containers' file systems: %w", err), os.RemoveAll(next))
	}
	return r.Base, nil
}

func makeBase(root string) error {
	for name := range directories {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	for _, name := range app.Distribution {
		if err := copyTree(root, name); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(os.Symlink("../run", root+"/var/run"), os.Symlink("../run/lock", root+"/var/lock"), setModes(root))
}

// setModes gives everything its mode, whatever the umask.
func setModes(root string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() == fs.ModeSymlink {
			return err
		}
		mode := os.FileMode(0o644)
		if e.IsDir() {
			mode = 0o755
		}
		if m, ok := directories[strings.TrimPrefix(path, root+"/")]; ok {
			mode = m
		}
		return os.Chmod(path, mode)
	})
}

// copyTree copies what the machine has under the name, as far as everybody may read it. A directory with programs is made, but nothing in
// it: it is a layer of its own.
func copyTree(root, name string) error {
	return filepath.WalkDir(name, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !e.IsDir() {
			return copyFile(root+path, path, e)
		}
		if err := os.MkdirAll(root+path, 0o755); err != nil || strings.HasPrefix(name, "/etc/") {
			return err
		}
		return fs.SkipDir
	})
}

func copyFile(to, path string, e fs.DirEntry) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if e.Type() == fs.ModeSymlink {
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	info, err := e.Info()
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o004 == 0 {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
