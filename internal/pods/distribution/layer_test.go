package distribution

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/testing/kerneltest"
)

// plainTree is the layer of a machine with the essential packages only.
func plainTree() map[string]string {
	tree := map[string]string{
		"/bin": "-> usr/bin", "/sbin": "-> usr/sbin", "/lib": "-> usr/lib", "/lib64": "-> usr/lib64",
		"/usr/bin/bash": "bash", "/usr/bin/ls": "ls", "/usr/bin/env": "env", "/usr/bin/dash": "dash", "/usr/bin/sh": "-> dash",
		"/usr/lib/x86_64-linux-gnu/libc.so.6": "libc", "/usr/lib64/ld.so": "-> /lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/getent": "getent",
		"/usr/lib/locale/C.utf8/LC_CTYPE": "utf8", "/usr/lib/os-release": "ID=debian\n", "/etc/debian_version": "13\n",
		"/proc": " (-r-xr-xr-x 0:0)", "/sys": " (-r-xr-xr-x 0:0)", "/root": " (-rwx------ 0:0)", "/run/lock": " (trwxrwxrwx 0:0)",
		"/tmp": " (trwxrwxrwx 0:0)", "/var/tmp": " (trwxrwxrwx 0:0)", "/var/lock": "-> ../run/lock", "/var/run": "-> ../run",
	}
	delete(tree, "/sbin") // there is nothing in it
	for name, text := range made {
		tree["/"+name] = text
	}
	return tree
}

// TestLayer: what there is beside the essential packages, and what comes of it, on machines whose /bin is a link and is none.
func TestLayer(t *testing.T) {
	kerneltest.NeedRoot(t)
	for _, tt := range []struct {
		name    string
		arrange func(m *machine)
		want    map[string]string // more than plainTree; "" for what is not there
		missing []string          // paths
	}{
		{"nothing", func(*machine) {}, nil, nil},
		{"what a package of the list needs", func(m *machine) {
			m.pack("curl", map[string]string{"/usr/bin/curl": "curl"}, "Depends: libnosuch | libcurl4 (>= 7) , mta:any\nPre-Depends: awk\n")
			m.pack("libcurl4", map[string]string{"/usr/lib/libcurl.so": "lib"}, "Depends: curl\n")
			m.pack("exim", map[string]string{"/usr/sbin/exim": "mta"}, "Provides: mta (= 1), other\n")
			m.pack("postfix", map[string]string{"/usr/sbin/postfix": "mta"}, "Provides: mta\n")
			m.pack("mine", map[string]string{"/usr/bin/mine": "mine"}, "Provides: curl\n")
			m.pack("init", map[string]string{"/sbin/init": "init"}, "Essential: yes\n")
			m.pack("less", map[string]string{"/usr/bin/less": "less", "/etc/lessrc": "removed"}, "gone")
			m.pack("jq", map[string]string{"/usr/bin/jq": "jq"}, "Triggers-Pending: ldconfig\n")
			m.pack("wget", map[string]string{"/usr/bin/wget": "of a foreign architecture"}, "Architecture: i386\n")
		}, map[string]string{"/usr/bin/curl": "curl", "/usr/lib/libcurl.so": "lib", "/usr/sbin/exim": "mta", "/usr/sbin/init": "init",
			"/usr/bin/jq": "jq",
			"/sbin":       "-> usr/sbin"}, nil},
		{"what is no package's, or changed", func(m *machine) {
			m.pack("netbase", map[string]string{"/etc/services": "http 80/tcp\n", "/etc/protocols": "tcp 6\n", "/usr/share/n/a": "a"}, "")
			m.write("/etc/services", "http 80/tcp\nsecret 1/tcp\n")
			m.replace("/usr/share/n/a", "secret")
			m.write("/etc/shadow", "secret")
			m.write("/etc/ssh/ssh_host_rsa_key", "secret")
			m.write("/usr/bin/mine", "secret")
			m.write("/usr/local/bin/mine", "secret")
			m.write("/root/.ssh/id", "secret")
			m.write("/etc/passwd", "secret")
			m.write("/etc/os-release", "secret")
		}, map[string]string{"/etc/protocols": "tcp 6\n"}, []string{"/etc/services", "/usr/share/n/a"}},
		{"links of an attacker", func(m *machine) {
			m.pack("netbase", map[string]string{"/usr/share/n/a": "a", "/usr/share/n/b": "b", "/usr/share/n/pipe": "p", "/usr/share/o/c": "c",
				"/usr/share/up/d": "d", "/usr/share/n/dir": "x", "/usr/share/n/to": "-> a", "/usr/share/n/away": "-> /etc/secret"}, "")
			m.write("/etc/secret", "secret")
			for _, name := range []string{"/usr/share/n/a", "/usr/share/n/b", "/usr/share/n/pipe", "/usr/share/n/dir"} {
				m.check(os.Remove(m.root + name))
			}
			m.symlink("/etc/secret", "/usr/share/n/a")
			m.symlink("../../../etc/secret", "/usr/share/n/b")
			m.mkdir("/usr/share/n/dir")
			m.write("/usr/share/n/dir/mine", "secret")
			m.check(unix.Mkfifo(m.root+"/usr/share/n/pipe", 0o644))
			away := m.t.TempDir()
			m.check(os.WriteFile(away+"/c", []byte("c"), 0o644))
			m.check(os.RemoveAll(m.root + "/usr/share/o"))
			m.symlink(away, "/usr/share/o")
			m.check(os.RemoveAll(m.root + "/usr/share/up"))
			m.symlink(strings.Repeat("../", 30)+away[1:], "/usr/share/up")
		}, nil, []string{"/usr/share/n/a", "/usr/share/n/b", "/usr/share/n/dir", "/usr/share/n/pipe", "/usr/share/o/c", "/usr/share/up/d"}},
		{"a list of an attacker", func(m *machine) {
			m.pack("less", map[string]string{"/usr/bin/less": "less"}, "")
			m.write("/etc/shadow", "secret")
			m.write("/var/lib/dpkg/info/less.list", "/.\n/usr/bin/../../etc/shadow\netc/shadow\n\n//etc/shadow\n/..\n/etc/shadow/\n/usr/bin/less\n")
		}, map[string]string{"/usr/bin/less": "less"}, nil},
		{"documentation and languages", func(m *machine) {
			m.pack("less", map[string]string{"/usr/bin/less": "less", "/usr/share/doc/less/README": "x", "/usr/share/man/man1/less.1.gz": "x",
				"/usr/share/less.link": "-> doc/less/README", "/usr/share/locale/de/a.mo": "x", "/usr/lib/locale/de_DE/LC_ALL": "x",
				"/var/lib/dpkg/x": "x", "/boot/vmlinuz": "x", "/lib/modules/6.1/x.ko": "x", "/usr/include/x.h": "x", "/usr/share/document": "kept"}, "")
		}, map[string]string{"/usr/bin/less": "less", "/usr/share/document": "kept"}, nil},
		{"modes and owners", func(m *machine) {
			m.pack("mount", map[string]string{"/bin/mount": "m", "/usr/bin/screen": "s", "/usr/bin/crontab": "c", "/var/mail/": ""}, "")
			for name, id := range map[string]int{"/bin/mount": 0, "/usr/bin/screen": 43, "/usr/bin/crontab": 101, "/var/mail": 8} {
				m.check(os.Chown(m.root+name, 0, id))
				m.check(unix.Chmod(m.root+name, 0o6755))
			}
			m.check(unix.Chmod(m.root+"/var/mail", 0o2775))
		}, map[string]string{"/usr/bin/mount": "m (ugrwxr-xr-x 0:0)", "/usr/bin/screen": "s (ugrwxr-xr-x 0:43)",
			"/usr/bin/crontab": "c (-rwxr-xr-x 0:0)",
			"/var/mail":        " (grwxrwxr-x 0:8)"}, nil},
		{"alternatives", func(m *machine) {
			m.pack("mawk", map[string]string{"/usr/bin/mawk": "mawk"}, "")
			m.pack("gawk", map[string]string{"/usr/bin/gawk": "-> /usr/bin/gawk-5", "/usr/bin/gawk-5": "gawk"}, "")
			m.pack("vim", map[string]string{"/usr/bin/vim": "vim"}, "")
			m.alternatives("awk", "/usr/bin/awk", "/root/awk", "/root/awk\n900\n/usr/bin/mawk\n5\n/usr/bin/gawk\n10\n")
			m.alternatives("editor", "/usr/bin/editor", "/usr/bin/vim", "/usr/bin/vim\n30\n")
			m.write("/var/lib/dpkg/alternatives/broken", "auto\n")
			m.write("/var/lib/dpkg/alternatives/..up", "auto\n/../../etc/up\n\n/usr/bin/mawk\n5\n\n")
		}, map[string]string{"/usr/bin/mawk": "mawk", "/usr/bin/gawk": "-> /usr/bin/gawk-5", "/usr/bin/gawk-5": "gawk",
			"/etc/alternatives/awk": "-> /usr/bin/gawk", "/usr/bin/awk": "-> /etc/alternatives/awk",
			"/etc/alternatives/..up": "-> /usr/bin/mawk", "/etc/up": "-> /etc/alternatives/..up"}, nil},
		{"diversions", func(m *machine) {
			m.pack("less", map[string]string{"/usr/bin/pager": "less", "/usr/bin/more": "more of less"}, "")
			m.pack("file", map[string]string{"/usr/bin/file": "file"}, "")
			m.check(os.Rename(m.root+"/usr/bin/pager", m.root+"/usr/bin/pager.of-less"))
			m.write("/usr/bin/pager", "of another package that is not in the layer")
			m.check(os.Rename(m.root+"/usr/bin/more", m.root+"/usr/bin/more.of-less"))
			m.check(os.Rename(m.root+"/usr/bin/file", m.root+"/usr/bin/file.real"))
			m.write("/usr/bin/file", "secret")
			m.pack("tar", map[string]string{"/usr/bin/more": "more of tar"}, "")
			m.write("/var/lib/dpkg/diversions", "/usr/bin/pager\n/usr/bin/pager.of-less\nother\n/usr/bin/more\n/usr/bin/more.of-less\ntar\n"+
				"/usr/bin/file\n/usr/bin/file.real\n:\n")
		}, map[string]string{"/usr/bin/pager": "less", "/usr/bin/more": "more of tar", "/usr/bin/more.of-less": "more of less",
			"/usr/bin/file": "file"}, nil},
		{"certificates", func(m *machine) {
			m.pack("ca-certificates", map[string]string{"/usr/share/ca-certificates/mozilla/B.crt": "B\n",
				"/usr/share/ca-certificates/mozilla/A.crt": "A",
				"/usr/share/ca-certificates/mozilla/C.crt": "C\n", "/etc/ssl/certs/": ""}, "")
			m.replace("/usr/share/ca-certificates/mozilla/C.crt", "of the machine\n")
			m.write("/usr/local/share/ca-certificates/mine.crt", "of the machine\n")
			m.write("/etc/ssl/certs/ca-certificates.crt", "of the machine\n")
		}, map[string]string{"/usr/share/ca-certificates/mozilla/B.crt": "B\n", "/usr/share/ca-certificates/mozilla/A.crt": "A",
			"/etc/ssl/certs/ca-certificates.crt": "A\nB\n"}, []string{"/usr/share/ca-certificates/mozilla/C.crt"}},
		{"links between what moves and what does not", func(m *machine) {
			m.pack("tar", map[string]string{"/bin/tar": "-> ../usr/lib/tar/tar", "/usr/lib/tar/tar": "tar",
				"/usr/lib/libz.so": "-> ../../lib/libz.so.1",
				"/lib/libz.so.1":   "-> libz.so.1.2", "/lib/libz.so.1.2": "z", "/usr/share/zoneinfo/Etc/UTC": "utc", "/usr/bin/loop": "-> loop",
				"/usr/bin/ping": "-> pong", "/usr/bin/pong": "-> ping"}, "")
		}, map[string]string{"/usr/bin/tar": "-> ../usr/lib/tar/tar", "/usr/lib/tar/tar": "tar", "/usr/lib/libz.so": "-> ../../lib/libz.so.1",
			"/usr/lib/libz.so.1": "-> libz.so.1.2", "/usr/lib/libz.so.1.2": "z", "/usr/share/zoneinfo/Etc/UTC": "utc",
			"/etc/localtime": "-> /usr/share/zoneinfo/Etc/UTC"}, nil},
	} {
		for name, split := range map[string]bool{"merged": false, "split": true} {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				m := newMachine(t, split)
				tt.arrange(m)
				want := plainTree()
				maps.Copy(want, tt.want)
				got, missing := m.layer()
				for path, target := range got { // who leads up from /bin leads elsewhere from /usr/bin
					if target == "-> /usr/lib/tar/tar" {
						got[path] = "-> ../usr/lib/tar/tar"
					}
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Error(d)
				}
				missing = slices.DeleteFunc(missing, func(s string) bool { return !strings.HasPrefix(s, "/") })
				if d := cmp.Diff(tt.missing, missing); d != "" && len(tt.missing)+len(missing) > 0 {
					t.Errorf("missing: %s", d)
				}
			})
		}
	}
}

// TestRequired: without a shell there is nothing to run; other packages of the list are only said to be missing.
func TestRequired(t *testing.T) {
	kerneltest.NeedRoot(t)
	m := newMachine(t, false)
	if _, missing := m.layer(); !slices.Contains(missing, "curl") || slices.Contains(missing, "bash") {
		t.Errorf("missing: %v", missing)
	}
	m.write("/var/lib/dpkg/status", strings.Replace(m.status.String(), "Package: bash\n", "Package: zsh\n", 1))
	_, err := Select(t.Context(), m.root, Whole)
	if err == nil || !strings.Contains(err.Error(), "the package bash is not installed: apt-get install bash") {
		t.Error(err)
	}
	for _, name := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/bin/bash"} {
		m := newMachine(t, false)
		m.replace(name, "another")
		s, err := Select(t.Context(), m.root, Whole)
		m.check(err)
		if _, err := s.Assemble(t.Context(), t.TempDir()+"/layer"); err == nil || !strings.Contains(err.Error(), "is not as its package brought it") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestThisMachine: what containers run runs in the layers of the machine itself, where only the layer's libraries are.
func TestThisMachine(t *testing.T) {
	kerneltest.NeedRoot(t)
	const script = `for c in %s; do $c >/out 2>&1 || { echo "$c: $?"; /usr/bin/cat /out; }; done; ` +
		`[ $(printf '\303\274' | LC_ALL=C.UTF-8 wc -m) = 1 ] || echo no UTF-8`
	const small = `"ip -V" "ss -V" "curl -V" "tcpdump --version" "wget -V" "ping -V" "env true" "grep -V" "sed --version" "find --version" ` +
		`"getent services http" "hostname"`
	const more = ` "iptables -V" "nft -v" "awk BEGIN{}" "openssl version" "findmnt -V" "conntrack -V" "tar --version" "gzip -V"`
	sizes := map[string]int64{}
	for part, commands := range map[*Part]string{&Small: small, &Whole: small + more} {
		s, err := Select(t.Context(), "/", *part)
		if err != nil {
			t.Fatal(err)
		}
		root := t.TempDir() + "/root"
		missing, err := s.Assemble(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: missing: %s", part, missing)
		out, err := program.Command{Path: "/bin/bash", Args: []string{"-c", fmt.Sprintf(script, commands)},
			Env: []string{"PATH=/usr/sbin:/usr/bin"}, Root: root}.Output(t.Context())
		if err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", part, err, out)
		}
		sizes[part.String()] = sizeOf(t, root)
	}
	if sizes["small"]*3/2 > sizes["whole"] { // how large packages are is the machine's
		t.Errorf("in bytes: %v", sizes)
	}
}

// sizeOf is the size of the regular files below a directory, bytes.
func sizeOf(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				size += info.Size()
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}
