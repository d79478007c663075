package images

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/beneath"
)

const (
	whiteout     = ".wh."              // before the name of what a layer removes (OCI image specification, layer.md)
	opaqueMarker = ".wh..wh..opq"      // in a directory: nothing of those below is seen in it
	otherMarkers = whiteout + ".wh."   // aufs's own
	attributes   = "SCHILY.xattr."     // before an extended attribute's name (PAX)
	wholeMode    = uint32(0o7777)      // what chmod(2) takes
	noID         = int(math.MaxUint32) // leaves an owner as it is (chown(2))
)

// An unpacker writes a layer's files as overlayfs wants them in a lower directory (Linux, overlayfs.rst): what the layer removes is a
// device 0/0, and a directory that hides those below has an attribute. No other device is made. Names are resolved by the kernel with the
// layer as their root, so that no link leads out of it.
type unpacker struct {
	root  *os.File
	lower []*os.File // the layers below, the nearest first
	left  budget
	buf   []byte

	dir     *os.File // the directory that was used last; nil for none
	dirName string
	times   []dirTime // to be set when nothing is written any more
}

type dirTime struct {
	name string
	time unix.Timespec
}

// look is what a file is like, beside its content.
type look struct {
	uid, gid int
	mode     uint32
	time     unix.Timespec
	xattrs   map[string]string
}

func (u *unpacker) close() {
	u.forget()
	for _, f := range append(u.lower, u.root) {
		if f != nil {
			f.Close()
		}
	}
}

// forget is needed when directories were removed.
func (u *unpacker) forget() {
	if u.dir != nil && u.dir != u.root {
		u.dir.Close()
	}
	u.dir = nil
}

func (u *unpacker) unpack(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return u.setTimes()
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, r); err != nil {
			return fmt.Errorf("file %q: %w", h.Name, err)
		}
	}
}

// entry writes what one entry of the archive says.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	name := strings.TrimLeft(h.Name, "/")
	if name != "" && !filepath.IsLocal(name) {
		return errors.New("its name leads out of the image")
	}
	if err := u.left.take(budget{h.Size, 1, int64(len(h.Name) + len(h.Linkname))}); err != nil {
		return err
	}
	name = path.Clean(name)
	base := path.Base(name)
	switch {
	case name == ".", h.Typeflag == tar.TypeXGlobalHeader, h.Typeflag == tar.TypeChar, h.Typeflag == tar.TypeBlock:
		return nil
	case base == opaqueMarker:
		return u.opaque(path.Dir(name))
	case strings.Contains("/"+name, "/"+otherMarkers):
		return nil
	}
	dir, err := u.open(path.Dir(name))
	if err != nil {
		return err
	}
	if removed, ok := strings.CutPrefix(base, whiteout); ok {
		return u.whiteout(dir, path.Dir(name), removed)
	}
	l, err := lookOf(h)
	if err != nil {
		return err
	}
	return u.write(dir, name, h, l, content)
}

// lookOf is what an entry says of its file. Attributes that mean something to the kernel or to overlayfs are left out, but for
// capabilities.
func lookOf(h *tar.Header) (look, error) {
	if h.Uid < 0 || h.Gid < 0 || h.Uid >= noID || h.Gid >= noID {
		return look{}, fmt.Errorf("its owner %d:%d is none", h.Uid, h.Gid)
	}
	l := look{uid: h.Uid, gid: h.Gid, mode: uint32(h.Mode) & wholeMode, time: timespec(h.ModTime), xattrs: map[string]string{}}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, attributes)
		if ok && (name == "security.capability" || strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")) {
			l.xattrs[name] = value
		}
	}
	return l, nil
}

func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

func (u *unpacker) write(dir *os.File, name string, h *tar.Header, l look, content io.Reader) error {
	base, fd := path.Base(name), int(dir.Fd())
	found, err := kind(dir, base)
	if err == nil && h.Typeflag != tar.TypeDir {
		err = u.clear(dir, base)
	}
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if found != unix.S_IFDIR {
			err = u.mkdir(dir, base)
		}
		u.times = append(u.times, dirTime{name, l.time})
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		err = u.file(fd, base, content)
	case tar.TypeSymlink:
		err = unix.Symlinkat(h.Linkname, fd, base)
	case tar.TypeFifo:
		err = unix.Mknodat(fd, base, unix.S_IFIFO|0o600, 0)
	case tar.TypeLink:
		return u.link(fd, base, h.Linkname) // what it is like is said where its other name is
	default:
		return fmt.Errorf("entries of type %q are not known", h.Typeflag)
	}
	if err != nil {
		return err
	}
	return l.set(dir, base, h.Typeflag == tar.TypeSymlink)
}

// kind is what there is of a name: one of unix.S_IFMT, 0 for nothing. A device is a whiteout.
func kind(dir *os.File, base string) (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return st.Mode & unix.S_IFMT, err
}

// clear makes place for a name.
func (u *unpacker) clear(dir *os.File, base string) error {
	found, err := kind(dir, base)
	if err != nil || found == 0 {
		return err
	}
	if u.dir != dir { // callers go on with theirs; another may be reached by what goes
		u.forget()
	}
	if found != unix.S_IFDIR {
		return unix.Unlinkat(int(dir.Fd()), base, 0)
	}
	root, err := os.OpenRoot(beside(dir, "."))
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(base)
}

// mkdir makes a directory where there may be something else. Where the layer removed what is below, it hides that.
func (u *unpacker) mkdir(dir *os.File, base string) error {
	found, err := kind(dir, base)
	if err == nil {
		err = u.clear(dir, base)
	}
	if err == nil {
		err = unix.Mkdirat(int(dir.Fd()), base, 0o700)
	}
	if err == nil && found == unix.S_IFCHR {
		err = unix.Setxattr(beside(dir, base), opaqueAttribute, []byte("y"), 0)
	}
	return err
}

// beside is a path to a name in an open directory, for calls that take no descriptor.
func beside(dir *os.File, base string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), base)
}

func (u *unpacker) file(dir int, base string, content io.Reader) error {
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, content, u.buf)
	return errors.Join(err, f.Close())
}

// link makes another name for a file of the layer.
func (u *unpacker) link(dir int, base, target string) error {
	at, err := beneath.In(u.root, path.Dir(path.Clean("/"+target)), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("link to %q: %w", target, err)
	}
	defer at.Close()
	if err := unix.Linkat(int(at.Fd()), path.Base(path.Clean("/"+target)), dir, base, 0); err != nil {
		return fmt.Errorf("link to %q: %w", target, err)
	}
	return nil
}

// set makes a file look so. Its owner comes first: with it capabilities go and bits of its mode.
func (l look) set(dir *os.File, base string, symlink bool) error {
	fd := int(dir.Fd())
	if err := unix.Fchownat(fd, base, l.uid, l.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set its owner: %w", err)
	}
	if !symlink {
		for name, value := range l.xattrs {
			err := unix.Lsetxattr(beside(dir, base), name, []byte(value), 0)
			if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) { // not there on every file system, nor on FIFOs
				return fmt.Errorf("set attribute %q: %w", name, err)
			}
		}
		if err := unix.Fchmodat(fd, base, l.mode, 0); err != nil {
			return fmt.Errorf("set its mode: %w", err)
		}
	}
	if err := unix.UtimesNanoAt(fd, base, []unix.Timespec{l.time, l.time}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set its time: %w", err)
	}
	return nil
}

// whiteout hides a name of the layers below. What this layer itself has of that name stays, and is all there is.
func (u *unpacker) whiteout(dir *os.File, dirName, base string) error {
	if base == "" || base == "." || base == ".." {
		return errors.New("it removes nothing that has a name")
	}
	err := unix.Mknodat(int(dir.Fd()), base, unix.S_IFCHR, 0)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if found, err := kind(dir, base); err != nil || found != unix.S_IFDIR {
		return err
	}
	return u.opaque(path.Join(dirName, base))
}

func (u *unpacker) opaque(name string) error {
	dir, err := u.open(name)
	if err != nil {
		return err
	}
	return unix.Setxattr(beside(dir, "."), opaqueAttribute, []byte("y"), 0)
}

// open opens a directory of the layer, and makes those on the way that the layer does not mention, as they are in the layers below:
// for containers the uppermost layer says what a directory is like.
func (u *unpacker) open(name string) (*os.File, error) {
	if name == "." {
		return u.root, nil
	}
	if u.dir != nil && u.dirName == name {
		return u.dir, nil
	}
	f, err := beneath.In(u.root, name, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		f, err = u.make(name)
	}
	if err != nil {
		return nil, err
	}
	u.forget()
	u.dir, u.dirName = f, name
	return f, nil
}

func (u *unpacker) make(name string) (*os.File, error) {
	if err := u.left.take(budget{files: 1, names: int64(len(name))}); err != nil {
		return nil, err
	}
	dir, err := u.open(path.Dir(name))
	if err != nil {
		return nil, err
	}
	base := path.Base(name)
	l := look{mode: 0o755}
	switch found, err := kind(dir, base); {
	case err != nil:
		return nil, err
	case found == 0:
		l = u.below(name)
	case found != unix.S_IFCHR:
		return nil, fmt.Errorf("%s: %w", name, unix.ENOTDIR)
	}
	if err := u.mkdir(dir, base); err != nil {
		return nil, err
	}
	if err := l.set(dir, base, false); err != nil {
		return nil, err
	}
	u.times = append(u.times, dirTime{name, l.time})
	return beneath.In(u.root, name, unix.O_PATH|unix.O_DIRECTORY)
}

// below is what a directory is like in the layers below.
func (u *unpacker) below(name string) look {
	for _, lower := range u.lower {
		f, err := beneath.In(lower, name, unix.O_PATH|unix.O_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			break // something on the way is no directory any more
		}
		var st unix.Stat_t
		err = unix.Fstat(int(f.Fd()), &st)
		f.Close()
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			break
		}
		return look{uid: int(st.Uid), gid: int(st.Gid), mode: st.Mode & wholeMode, time: st.Mtim}
	}
	return look{mode: 0o755}
}

// setTimes gives directories the times that writing to them has changed. What became something else meanwhile has its own.
func (u *unpacker) setTimes() error {
	for _, d := range slices.Backward(u.times) {
		f, err := beneath.In(u.root, d.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if err != nil {
			continue
		}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, beside(f, "."), []unix.Timespec{d.time, d.time}, 0)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
