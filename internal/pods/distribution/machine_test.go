package distribution

import (
	"crypto/md5"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A made-up machine: a root directory with packages by dpkg's records.
type machine struct {
	t      *testing.T
	root   string
	split  bool // /bin and /usr/bin are two
	status strings.Builder
}

// essentials are what a machine has to have.
var essentials = map[string]map[string]string{
	"base-files": {"/usr/lib/os-release": "ID=debian\n", "/etc/debian_version": "13\n"}, "bash": {"/bin/bash": "bash"},
	"coreutils": {"/bin/ls": "ls", "/usr/bin/env": "env"}, "dash": {"/bin/dash": "dash", "/bin/sh": "-> dash"},
	"libc6":    {"/lib/x86_64-linux-gnu/libc.so.6": "libc", "/lib64/ld.so": "-> /lib/x86_64-linux-gnu/libc.so.6"},
	"libc-bin": {"/usr/bin/getent": "getent", "/usr/lib/locale/C.utf8/LC_CTYPE": "utf8"},
}

func newMachine(t *testing.T, split bool) *machine {
	m := &machine{t: t, root: t.TempDir(), split: split}
	m.mkdir("/var/lib/dpkg/info")
	m.mkdir("/var/lib/dpkg/updates")
	for _, top := range merged {
		m.mkdir("/usr/" + top)
		if split {
			m.mkdir("/" + top)
		} else {
			m.symlink("usr/"+top, "/"+top)
		}
	}
	for name, files := range essentials {
		m.pack(name, files, "")
	}
	return m
}

func (m *machine) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) mkdir(name string)           { m.check(os.MkdirAll(m.root+name, 0o755)) }
func (m *machine) symlink(target, name string) { m.check(os.Symlink(target, m.root+name)) }

func (m *machine) write(name, text string) {
	m.t.Helper()
	m.mkdir(filepath.Dir(name))
	m.check(os.WriteFile(m.root+name, []byte(text), 0o644))
}

func (m *machine) replace(name, text string) { m.check(os.Remove(m.root + name)); m.write(name, text) }

// pack installs a package: files by path, a link where the text begins with an arrow, a directory where the path ends with a slash;
// everything in /etc is a conffile. more are fields of its status.
func (m *machine) pack(name string, files map[string]string, more string) {
	m.t.Helper()
	list, sums, conffiles := []string{"/."}, "", ""
	for path, text := range files {
		target, link := strings.CutPrefix(text, "-> ")
		sum := fmt.Sprintf("%x", md5.Sum([]byte(text)))
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			list = append(list, dir)
		}
		list = append(list, strings.TrimSuffix(path, "/"))
		switch {
		case link:
			m.mkdir(filepath.Dir(path))
			m.symlink(target, path)
			continue
		case strings.HasSuffix(path, "/"):
			m.mkdir(path)
			continue
		case strings.HasPrefix(path, "/etc/"):
			conffiles += "\n " + path + " " + sum
		default:
			sums += sum + "  " + path[1:] + "\n"
		}
		m.write(path, text)
	}
	slices.Sort(list)
	m.write("/var/lib/dpkg/info/"+name+".list", strings.Join(slices.Compact(list), "\n")+"\n")
	m.write("/var/lib/dpkg/info/"+name+".md5sums", sums)
	if conffiles != "" {
		more += "Conffiles:" + conffiles + "\n"
	}
	status := "install ok installed"
	if strings.Contains(more, "gone") {
		status, more = "deinstall ok config-files", ""
	}
	if strings.Contains(more, "Triggers-Pending") {
		status = "install ok triggers-pending"
	}
	arch := "amd64"
	if strings.Contains(more, "Architecture") {
		arch, more = "i386", ""
	}
	fmt.Fprintf(&m.status, "Package: %s\nStatus: %s\nArchitecture: %s\nVersion: 1\nMaintainer: a\nDescription: a\n%s\n", name, status, arch,
		more)
	m.write("/var/lib/dpkg/status", m.status.String())
}

// alternatives writes a record of update-alternatives' and the links of somebody's choice.
func (m *machine) alternatives(name, link, chosen, choices string) {
	m.write("/var/lib/dpkg/alternatives/"+name, "manual\n"+link+"\n\n"+choices+"\n")
	m.mkdir("/etc/alternatives")
	m.symlink(chosen, "/etc/alternatives/"+name)
	m.symlink("/etc/alternatives/"+name, link)
}

// layer assembles the machine's, and lists what is in it: text of a file, target of a link, and what of mode and owner is not usual.
func (m *machine) layer() (tree map[string]string, missing []string) {
	m.t.Helper()
	s, err := Select(m.t.Context(), m.root, Whole)
	m.check(err)
	dir := m.t.TempDir() + "/layer"
	missing, err = s.Assemble(m.t.Context(), dir)
	m.check(err)
	missing = slices.Concat(s.Missing, missing)
	tree = map[string]string{}
	m.check(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		st := info.Sys().(*syscall.Stat_t)
		text := ""
		switch e.Type() {
		case fs.ModeDir:
			if st.Uid == 0 && st.Gid == 0 && info.Mode().Perm() == 0o755 {
				return nil
			}
		case fs.ModeSymlink:
			target, errLink := os.Readlink(path)
			tree[strings.TrimPrefix(path, dir)] = "-> " + target
			return errors.Join(err, errLink)
		default:
			data, errRead := os.ReadFile(path)
			text, err = string(data), errors.Join(err, errRead)
		}
		if mode := info.Mode() &^ fs.ModeDir; st.Uid != 0 || st.Gid != 0 || mode != 0o644 {
			text += fmt.Sprintf(" (%v %d:%d)", mode, st.Uid, st.Gid)
		}
		tree[strings.TrimPrefix(path, dir)] = text
		return err
	}))
	return tree, missing
}
