package layout

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoSuchPod: who names a pod that is not there is told how to list those that are.
func TestNoSuchPod(t *testing.T) {
	if _, err := Dir(t.TempDir()).FindHost("pod/nobody"); err == nil || !strings.Contains(err.Error(), "packetwalk kubectl get pods") {
		t.Error(err)
	}
}

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
		if got := LastLinesOfNode(state, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"*", "..", "", strings.Repeat("a", 63), strings.Repeat("a", 63) + "*"} {
		if sandboxName.MatchString(name) {
			t.Errorf("%q is the name of a sandbox", name)
		}
	}
}
