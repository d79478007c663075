package scripts

import (
	"os/exec"
	"os/user"
	"strings"
	"testing"
)

// TestAsRoot: what runs as root behind sudo has the caller's environment, and root's home directory.
func TestAsRoot(t *testing.T) {
	m := newMachine(t, "", "")
	m.program("id", "echo 1000")
	root, err := user.LookupId("0")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("./as-root", "env")
	cmd.Env = []string{"PATH=" + m.bin, "HOME=/home/user", "XDG_CACHE_HOME=/home/user/.cache", "GOPATH=/home/user/go", "GOFLAGS=-trimpath", "CI=1"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(string(out), "\n")
	for _, line := range lines {
		if strings.Contains(line, "/home/user") {
			t.Errorf("root has the caller's %s", line)
		}
	}
	for _, want := range []string{"HOME=" + root.HomeDir, "GOFLAGS=-trimpath", "CI=1", "PATH=" + m.bin + ":/usr/sbin:/sbin"} {
		if !strings.Contains("\n"+string(out), "\n"+want+"\n") {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}
