package lab

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFilesOfNodes: what is read of a real node's own files is a regular file of its own, whatever its processes have put there.
func TestFilesOfNodes(t *testing.T) {
	state, machine := t.TempDir(), t.TempDir()
	secret := filepath.Join(machine, "secret")
	log := filepath.Join(state, "log")
	if err := errors.Join(os.WriteFile(secret, []byte("machine's"), 0o600), os.Mkdir(log, 0o755),
		os.WriteFile(filepath.Join(log, "kubelet.log"), []byte("one\ntwo\x1b[31m\n"), 0o600),
		os.Symlink(secret, filepath.Join(log, "absolute")), os.Symlink("../../"+filepath.Base(machine)+"/secret", filepath.Join(log, "relative")),
		os.Symlink(machine, filepath.Join(state, "away")), os.Symlink("kubelet.log", filepath.Join(log, "within")),
		unix.Mkfifo(filepath.Join(log, "fifo"), 0o600), unix.Mknod(filepath.Join(log, "socket"), unix.S_IFSOCK|0o600, 0)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"log/kubelet.log": "\n  one\n  two [31m", "log/within": "\n  one\n  two [31m",
		"log/absolute": "", "log/relative": "", "away/secret": "", "log/fifo": "", "log/socket": "", "log": "", "log/none": "",
		"../" + filepath.Base(machine) + "/secret": "",
	} {
		if got := lastLines(state, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"*", "..", "", strings.Repeat("a", 63), strings.Repeat("a", 63) + "*"} {
		if sandboxName.MatchString(name) {
			t.Errorf("%q is the name of a sandbox", name)
		}
	}
}

// TestLabsIn: labs of which only nodes' disks are left are among all, once each, and directories that are no labs' are not.
func TestLabsIn(t *testing.T) {
	run, disks := t.TempDir(), t.TempDir()
	for _, dir := range []string{run + "/b", run + "/.hidden", disks + "/a", disks + "/b", disks + "/lost+found"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for want, roots := range map[string][]string{"b": {run, run + "/none"}, "a b": {run, disks}} {
		dirs, err := labsIn(roots...)
		var names []string
		for _, d := range dirs {
			names = append(names, d.Name())
		}
		if err != nil || !slices.Equal(names, strings.Fields(want)) {
			t.Errorf("in %q are %q, %v", roots, names, err)
		}
	}
}
