package cniinstall

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	conf = "10-packetwalk.conflist"
	list = `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "packetwalk-cni"}, {"type": "%s"}]}`
)

// TestMain: with a directory in the environment, the test's program is one who installs and removes until it is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("PACKETWALK_TEST_INSTALL"); dir != "" {
		n := nodeAt(dir)
		for i := 0; ; i++ {
			err := n.install(i)
			if i%3 == 2 {
				_, err2 := Remove(n.dirs, "")
				err = errors.Join(err, err2)
			}
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
	}
	os.Exit(m.Run())
}

// place where versions are installed.
type testNode struct {
	dirs   Dirs
	source string
}

func nodeAt(dir string) testNode {
	return testNode{Dirs{Bin: filepath.Join(dir, "bin"), Conf: filepath.Join(dir, "conf")}, filepath.Join(dir, "source")}
}

// newNode has two versions of our plugin to install, a second plugin for each, and another's files.
func newNode(t *testing.T) (testNode, string) {
	t.Helper()
	dir := t.TempDir()
	n := nodeAt(dir)
	for _, d := range []string{n.dirs.Bin, n.dirs.Conf, n.source + "0", n.source + "1"} {
		if err := os.Mkdir(d, 0o755); err != nil { //nolint:gosec // as on a node
			t.Fatal(err)
		}
	}
	for i, second := range []string{"portmap", "bandwidth"} {
		source := fmt.Sprint(n.source, i)
		write(t, source, Plugin, strings.Repeat(fmt.Sprint("version ", i), 100_000))
		write(t, source, second, fmt.Sprint(second, i))
	}
	write(t, n.dirs.Bin, "theirs", "theirs")
	write(t, n.dirs.Conf, "20-theirs.conflist", "{}")
	return n, dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

func (n testNode) options(version int) Options {
	second := []string{"portmap", "bandwidth"}[version%2]
	return Options{Dirs: n.dirs, Sources: []string{"/no/such", fmt.Sprint(n.source, version%2)}, Name: conf,
		Conflist: fmt.Appendf(nil, list, second), Owner: "me"}
}

func (n testNode) install(version int) error {
	_, err := Install(n.options(version))
	return err
}

// has are the names in both directories.
func (n testNode) has(t *testing.T) string {
	t.Helper()
	var names []string
	for _, d := range []string{n.dirs.Bin, n.dirs.Conf} {
		entries, err := os.ReadDir(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

const theirs = "theirs 20-theirs.conflist"

func (n testNode) must(t *testing.T, notes []string, err error, want ...string) {
	t.Helper()
	if err != nil || !slices.Equal(notes, want) {
		t.Errorf("%q, %v; want %q", notes, err, want)
	}
}

// TestInstall: what is installed is there, a second time changes nothing, another version takes the place of the first, and removing leaves
// what was there before.
func TestInstall(t *testing.T) {
	n, _ := newNode(t)
	if err := Check(n.dirs, ""); err == nil {
		t.Error("before an installation all is well")
	}
	n.must(t, nil, n.install(0))
	if got := n.has(t); got != "packetwalk-cni portmap theirs 10-packetwalk.conflist 20-theirs.conflist "+recordName {
		t.Errorf("there are %s", got)
	}
	info, err := os.Stat(filepath.Join(n.dirs.Bin, Plugin))
	if err != nil || info.Mode() != 0o755 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	n.must(t, nil, errors.Join(n.install(0), Check(n.dirs, "")))
	if again, err := os.Stat(filepath.Join(n.dirs.Bin, Plugin)); err != nil || !os.SameFile(info, again) {
		t.Errorf("what was right was written again: %v", err)
	}
	n.must(t, nil, errors.Join(n.install(1), Check(n.dirs, "")))
	if got := n.has(t); got != "bandwidth packetwalk-cni theirs 10-packetwalk.conflist 20-theirs.conflist "+recordName {
		t.Errorf("another version: %s", got)
	}
	// Another name of the configuration, and a plugin that only a version before had.
	o := n.options(1)
	o.Name, o.Sources = "05-packetwalk.conflist", []string{t.TempDir()}
	notes, err := Install(o)
	n.must(t, notes, errors.Join(err, Check(n.dirs, "")))
	if got := n.has(t); got != "bandwidth packetwalk-cni theirs 05-packetwalk.conflist 20-theirs.conflist "+recordName {
		t.Errorf("another name: %s", got)
	}
	for _, want := range [][]string{nil, {"nothing is installed"}} {
		notes, err := Remove(n.dirs, "me")
		n.must(t, notes, err, want...)
		if got := n.has(t); got != theirs {
			t.Errorf("removed: %s", got)
		}
	}
}

// TestOthers: what others have, or have changed, stays as it is.
func TestOthers(t *testing.T) {
	n, _ := newNode(t)
	write(t, n.dirs.Bin, "portmap", "another portmap")
	write(t, n.dirs.Conf, "00-another.conf", "{}")
	notes, err := Install(n.options(0))
	n.must(t, notes, err, "the plugin portmap that the node has is used; it is not the one to install",
		"00-another.conf comes before 10-packetwalk.conflist: runtimes take the first by name")

	notes, err = Remove(n.dirs, "another")
	n.must(t, notes, err, "another has installed since: everything stays")
	if err := Check(n.dirs, ""); err != nil {
		t.Error(err)
	}
	write(t, n.dirs.Conf, conf, "changed by hand")
	if err := Check(n.dirs, ""); err == nil || !strings.Contains(err.Error(), conf+" is not as it was installed") {
		t.Errorf("changed: %v", err)
	}
	if err := n.install(0); err == nil || !strings.Contains(err.Error(), "remove it, or choose another name") {
		t.Errorf("over a configuration of others: %v", err)
	}
	notes, err = Remove(n.dirs, "")
	n.must(t, notes, err, conf+" is not as it was installed: it stays")
	if got := n.has(t); got != "portmap theirs 00-another.conf "+conf+" 20-theirs.conflist" {
		t.Errorf("removed: %s", got)
	}

	n, _ = newNode(t)
	write(t, n.dirs.Bin, Plugin, "another's")
	if err := n.install(0); err == nil || !strings.Contains(err.Error(), "was not installed by this: remove it first") {
		t.Errorf("over a plugin of others: %v", err)
	}
	if got := n.has(t); got != Plugin+" "+theirs {
		t.Errorf("refused: %s", got)
	}
}

// TestLostRecord: where the record goes with a restart of the node, what is as it is to be installed is ours again: it is there, gives way
// to another version, and goes at the end; a plugin that others may have brought stays.
func TestLostRecord(t *testing.T) {
	for _, kept := range []string{"", conf} { // of the directory of the record
		n, _ := newNode(t)
		n.must(t, nil, n.install(0))
		for _, name := range []string{recordName, conf} {
			if name == kept {
				continue
			}
			if err := os.Remove(filepath.Join(n.dirs.Conf, name)); err != nil {
				t.Fatal(err)
			}
		}
		n.must(t, nil, errors.Join(n.install(0), Check(n.dirs, "me"), n.install(1), Check(n.dirs, "me")))
		notes, err := Remove(n.dirs, "me")
		n.must(t, notes, err)
		if got := n.has(t); got != "portmap "+theirs {
			t.Errorf("removed: %s", got)
		}
	}
}

// TestCheckOwner checks that Check does not accept an earlier installation of another owner, even if it is complete.
func TestCheckOwner(t *testing.T) {
	n, _ := newNode(t)
	n.must(t, nil, errors.Join(n.install(0), Check(n.dirs, "me"), Check(n.dirs, "")))
	o := n.options(0)
	o.Owner, o.Conflist = "next", []byte("{}")
	if _, err := Install(o); err == nil {
		t.Error("it installed a list without plugins")
	}
	if err := Check(n.dirs, "next"); err == nil || !strings.Contains(err.Error(), "what is there is another's") {
		t.Errorf("after one that failed: %v", err)
	}
	o.Conflist = n.options(0).Conflist
	_, err := Install(o)
	n.must(t, nil, errors.Join(err, Check(n.dirs, "next")))
	if Check(n.dirs, "me") == nil {
		t.Error("it is still the installation of before")
	}
}

func removeFile(n testNode, name string) error { return os.Remove(filepath.Join(n.dirs.Bin, name)) }

// TestLinks checks that the installer follows no symbolic link that another user made, neither on the path nor in place of a file.
func TestLinks(t *testing.T) {
	n, dir := newNode(t)
	victim := filepath.Join(dir, "victim")
	write(t, dir, "victim", "theirs")
	if err := os.Symlink(victim, filepath.Join(n.dirs.Bin, "portmap")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(n.dirs.Conf, conf)); err != nil {
		t.Fatal(err)
	}
	if err := n.install(0); err == nil || !strings.Contains(err.Error(), "was not installed by this") {
		t.Errorf("over a link: %v", err)
	}
	link := filepath.Join(n.dirs.Conf, recordName)
	if err := errors.Join(os.Remove(filepath.Join(n.dirs.Conf, conf)), os.Symlink(victim, link)); err != nil {
		t.Fatal(err)
	}
	if err := n.install(0); err == nil {
		t.Error("it read a record over a link")
	}
	if err := os.Remove(filepath.Join(n.dirs.Conf, recordName)); err != nil {
		t.Fatal(err)
	}
	if err := n.install(0); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "theirs" {
		t.Errorf("the file that links lead to: %q, %v", text, err)
	}
	moved := n
	moved.dirs.Bin = filepath.Join(dir, "link")
	if err := os.Symlink(n.dirs.Bin, moved.dirs.Bin); err != nil {
		t.Fatal(err)
	}
	if err := moved.install(0); err == nil || !strings.Contains(err.Error(), "a link is on the way") {
		t.Errorf("a directory by a link: %v", err)
	}
	if err := os.Chmod(n.dirs.Bin, 0o777); err != nil { //nolint:gosec // that is the point
		t.Fatal(err)
	}
	if err := n.install(1); err == nil || !strings.Contains(err.Error(), "is world-writable") {
		t.Errorf("a world-writable directory: %v", err)
	}
}

// TestBadInput: what is wrong is said, and nothing is written.
func TestBadInput(t *testing.T) {
	n, _ := newNode(t)
	for name, o := range map[string]func(*Options){
		"no name of a network configuration list": func(o *Options) { o.Name = "../x.conflist" },
		"write one such as 10":                    func(o *Options) { o.Name = "10-packetwalk.json" },
		"read the network configuration list":     func(o *Options) { o.Conflist = []byte("{") },
		"no cniVersion":                           func(o *Options) { o.Conflist = []byte("{}") },
		"no name of a program":                    func(o *Options) { o.Conflist = fmt.Appendf(nil, list, "../../sbin/init") },
		"neither in":                              func(o *Options) { o.Conflist = fmt.Appendf(nil, list, "absent") },
		"no such file":                            func(o *Options) { o.Bin = "/no/such/directory" },
	} {
		options := n.options(0)
		o(&options)
		if _, err := Install(options); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %s", err, name)
		}
	}
	if got := n.has(t); got != theirs {
		t.Errorf("it wrote: %s", got)
	}
	for _, text := range []string{"{", `{"files": {"etc/passwd": []}}`, `{"files": {"bin/../x": ["1"]}}`} {
		write(t, n.dirs.Conf, recordName, text)
		if _, err := Remove(n.dirs, ""); err == nil || !strings.Contains(err.Error(), "by hand") {
			t.Errorf("record %s: %v", text, err)
		}
	}
}

// TestKilled: whenever who installs or removes is killed, a configuration that is there has all of its plugins, whole, and who comes next
// finishes, and leaves nothing.
func TestKilled(t *testing.T) {
	n, dir := newNode(t)
	for i := range 60 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "PACKETWALK_TEST_INSTALL="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var out strings.Builder
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(5+rand.IntN(30)) * time.Millisecond)
		_ = cmd.Process.Kill()
		if _ = cmd.Wait(); out.Len() > 0 {
			t.Fatal(out.String())
		}
		text, err := os.ReadFile(filepath.Join(n.dirs.Conf, conf))
		if err == nil {
			plugins, err := Plugins(text)
			if err != nil {
				t.Fatalf("a part of a configuration: %q", text)
			}
			for _, name := range plugins {
				if plugin, err := os.ReadFile(filepath.Join(n.dirs.Bin, name)); err != nil || !n.whole(t, name, plugin) {
					t.Fatalf("with a configuration the plugin %s is not there, or not whole: %v", name, err)
				}
			}
		}
		if i%4 > 0 {
			continue // the next goes on from there
		}
		n.must(t, nil, errors.Join(n.install(i/4), Check(n.dirs, "")))
		if _, err := Remove(n.dirs, ""); err != nil {
			t.Fatal(err)
		}
		if got := n.has(t); got != theirs {
			t.Fatalf("it left %s", got)
		}
	}
}

// whole reports whether it is one of the versions of a plugin.
func (n testNode) whole(t *testing.T, name string, text []byte) bool {
	t.Helper()
	for i := range 2 {
		if version, err := os.ReadFile(filepath.Join(fmt.Sprint(n.source, i), name)); err == nil && string(version) == string(text) {
			return true
		}
	}
	return false
}
