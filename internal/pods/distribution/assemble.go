package distribution

import (
	"context"
	"crypto/md5" // what dpkg records
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// An assembly is a layer in the making. Both directories are roots that no link leads out of.
type assembly struct {
	machine, layer *os.Root
	has            map[string]bool   // the layer's files and directories, by paths without the first slash
	links          map[string]string // those to make
	files          []file
	missing        []string // files that the machine does not have as the package brought them
}

// A folder opens directories of a root, one after the other: what is in the same one is not looked for from the top each time.
type folder struct {
	root *os.Root
	name string
	open *os.Root
}

func (f *folder) at(name string) (*os.Root, error) {
	if f.open != nil && f.name == name {
		return f.open, nil
	}
	f.close()
	open, err := f.root.OpenRoot(name)
	if err == nil {
		f.name, f.open = name, open
	}
	return open, err
}

func (f *folder) close() {
	if f.open != nil {
		f.open.Close()
		f.open = nil
	}
}

// A file is a regular one to copy.
type file struct {
	entry
	info fs.FileInfo
}

// assemble makes the layer of packages in an empty directory. missing are the files that are left out, by their paths on the machine.
func assemble(ctx context.Context, machine, layer *os.Root, chosen []debian) (missing []string, err error) {
	a := &assembly{machine: machine, layer: layer, has: map[string]bool{}, links: maps.Clone(linked)}
	if err := a.survey(chosen); err != nil {
		return nil, err
	}
	if err := a.copyFiles(ctx); err != nil {
		return nil, err
	}
	if err := a.runs(); err != nil {
		return nil, err
	}
	if err := a.makeFiles(); err != nil {
		return nil, err
	}
	if err := a.makeLinks(); err != nil {
		return nil, err
	}
	for _, d := range directories { // at last, and whatever the umask
		if err := layer.Chmod(d.name, d.mode); err != nil {
			return nil, err
		}
	}
	slices.Sort(a.missing)
	return a.missing, nil
}

// survey makes the directories, and finds what there is to copy and to link.
func (a *assembly) survey(chosen []debian) error {
	diversions, err := readDiversions(a.machine)
	if err != nil {
		return err
	}
	inClosure := func(name string) bool {
		return slices.ContainsFunc(chosen, func(p debian) bool { return p.name == name })
	}
	for _, d := range directories {
		if err := a.makeDir(d.name); err != nil {
			return err
		}
	}
	from := folder{root: a.machine}
	defer from.close()
	for i := range chosen {
		c, err := readContent(a.machine, chosen[i])
		if err != nil {
			return fmt.Errorf("package %s: %w", chosen[i].name, err)
		}
		for _, e := range chosen[i].entries(c, diversions, inClosure) {
			if err := a.sort(&from, e); err != nil {
				return fmt.Errorf("package %s: /%s: %w", chosen[i].name, e.source, err)
			}
		}
	}
	return nil
}

// sort looks at what the machine has at a path of a package's. What is no file where the package has one is left out.
func (a *assembly) sort(from *folder, e entry) error {
	if made[e.target] != "" || linked[e.target] != "" {
		return nil
	}
	dir, name := path.Dir(e.source), path.Base(e.source)
	var info fs.FileInfo
	in, err := from.at(dir)
	if err == nil {
		info, err = in.Lstat(name)
	}
	switch {
	case err != nil, e.sum != "" && !info.Mode().IsRegular():
		a.missing = append(a.missing, "/"+e.source)
	case info.IsDir():
		return a.adopt(e.target, info)
	case info.Mode().IsRegular():
		a.files = append(a.files, file{e, info})
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := in.Readlink(name)
		if err != nil {
			return err
		}
		a.links[e.target] = MovedLink(e.source, target)
	}
	return nil
}

// adopt makes a directory with the owner and the mode of the machine's.
func (a *assembly) adopt(name string, info fs.FileInfo) error {
	if a.has[name] {
		return nil
	}
	if err := a.makeDir(name); err != nil {
		return err
	}
	return own(a.layer, name, info)
}

// makeDir makes a directory and those above it, mode 0755.
func (a *assembly) makeDir(name string) error {
	if name == "." || a.has[name] {
		return nil
	}
	if err := a.makeDir(path.Dir(name)); err != nil {
		return err
	}
	a.has[name] = true
	return errors.Join(a.layer.Mkdir(name, 0o755), a.layer.Chmod(name, 0o755))
}

// static is the end of the user and group numbers that are the same on all Debian machines (Debian Policy, 9.2.2).
const static = 100

// own gives the owner and the mode of the machine's file. Other accounts than Debian's own are this machine's: what is theirs becomes
// root's.
func own(in *os.Root, name string, info fs.FileInfo) error {
	mode := info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	uid, gid := 0, 0
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid < static && st.Gid < static {
		uid, gid = int(st.Uid), int(st.Gid)
	} else {
		mode &^= fs.ModeSetuid | fs.ModeSetgid
	}
	return errors.Join(in.Lchown(name, uid, gid), in.Chmod(name, mode))
}

// copyFiles copies the regular files, several at once.
func (a *assembly) copyFiles(ctx context.Context) error {
	slices.SortStableFunc(a.files, func(x, y file) int { return strings.Compare(x.target, y.target) })
	a.files = slices.CompactFunc(a.files, func(x, y file) bool { return x.target == y.target })
	for _, f := range a.files {
		if err := a.makeDir(path.Dir(f.target)); err != nil {
			return err
		}
	}
	queue := make(chan file)
	var mu sync.Mutex
	var errs []error
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			from, to := folder{root: a.machine}, folder{root: a.layer}
			defer from.close()
			defer to.close()
			for f := range queue {
				same, err := copyFile(&from, &to, f)
				mu.Lock()
				switch {
				case err != nil && len(errs) == 0:
					errs = append(errs, fmt.Errorf("/%s: %w", f.source, err))
				case same:
					a.has[f.target] = true
				case err == nil:
					a.missing = append(a.missing, "/"+f.source)
				}
				mu.Unlock()
			}
		})
	}
	for _, f := range a.files {
		if ctx.Err() != nil {
			break
		}
		queue <- f
	}
	close(queue)
	workers.Wait()
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// runs tells whether a shell can run: a layer without one is not kept.
func (a *assembly) runs() error {
	for _, vital := range []string{"bin/bash", "bin/dash", "libc.so.6"} {
		found := false
		for name := range a.has {
			found = found || strings.HasSuffix(name, "/"+vital)
		}
		if !found {
			return fmt.Errorf("%s is not as its package brought it; see dpkg --verify, and apt-get install --reinstall", vital)
		}
	}
	return nil
}

// maxFile is more than any package's file of the list has, in bytes.
const maxFile = 64 << 20

// copyFile copies a file, if it is as the package brought it.
func copyFile(from, to *folder, f file) (same bool, err error) {
	if f.sum == "" || f.info.Size() > maxFile {
		return false, nil
	}
	source, err := from.at(path.Dir(f.source))
	if err != nil {
		return false, err
	}
	target, err := to.at(path.Dir(f.target))
	if err != nil {
		return false, err
	}
	in, err := source.OpenFile(path.Base(f.source), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile))
	if err != nil {
		return false, err
	}
	if sum := md5.Sum(data); hex.EncodeToString(sum[:]) != f.sum { // what dpkg records
		return false, nil
	}
	name := path.Base(f.target)
	if err := target.WriteFile(name, data, 0o600); err != nil {
		return false, err
	}
	return true, errors.Join(own(target, name, f.info), copyCapabilities(in, target, name))
}

// copyCapabilities keeps what a program may do that is started by others than root, as ping.
func copyCapabilities(in *os.File, target *os.Root, name string) error {
	const attribute = "security.capability"
	value := make([]byte, 64)
	n, err := unix.Fgetxattr(int(in.Fd()), attribute, value)
	if err != nil { // it has none, or its file system knows of none
		return nil
	}
	out, err := target.Open(name)
	if err != nil {
		return err
	}
	defer out.Close()
	return unix.Fsetxattr(int(out.Fd()), attribute, value[:n], 0)
}

// makeFiles makes what no package has.
func (a *assembly) makeFiles() error {
	files := maps.Clone(made)
	bundle, err := a.certificates()
	if err != nil {
		return err
	}
	if bundle != "" {
		files["etc/ssl/certs/ca-certificates.crt"] = bundle
	}
	for name, text := range files {
		if err := a.makeDir(path.Dir(name)); err != nil {
			return err
		}
		if err := errors.Join(a.layer.WriteFile(name, []byte(text), 0o644), a.layer.Chmod(name, 0o644)); err != nil {
			return err
		}
		a.has[name] = true
	}
	return nil
}

// certificates are those of the layer, one after the other, as update-ca-certificates makes it of them and of the machine's own.
func (a *assembly) certificates() (string, error) {
	var bundle strings.Builder
	for _, name := range slices.Sorted(maps.Keys(a.has)) {
		if !strings.HasPrefix(name, "usr/share/ca-certificates/") || !strings.HasSuffix(name, ".crt") {
			continue
		}
		data, err := a.layer.ReadFile(name)
		if err != nil {
			return "", err
		}
		bundle.WriteString(strings.TrimSuffix(string(data), "\n") + "\n")
	}
	return bundle.String(), nil
}

// makeLinks makes the links that lead to something: the packages' and those of alternatives.
func (a *assembly) makeLinks() error {
	all, err := readAlternatives(a.machine)
	if err != nil {
		return err
	}
	for name := range a.links { // before a link to a directory that has nothing but links is looked at
		if err := a.makeDir(path.Dir(name)); err != nil {
			return err
		}
	}
	// What an alternative leads to may be a package's link.
	plain := reached(a.links, func(name string) bool { return a.has[name] })
	for i := range all {
		maps.Copy(a.links, all[i].choose(func(name string) bool { _, link := plain[name]; return link || a.has[name] }))
	}
	for _, top := range merged {
		a.links[top] = "usr/" + top
	}
	to := folder{root: a.layer}
	defer to.close()
	links := reached(a.links, func(name string) bool { return a.has[name] })
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if err := a.makeDir(path.Dir(name)); err != nil {
			return err
		}
		dir, err := to.at(path.Dir(name))
		if err != nil {
			return err
		}
		if err := dir.Symlink(links[name], path.Base(name)); err != nil {
			return err
		}
	}
	return nil
}
