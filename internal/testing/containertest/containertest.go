// Package containertest is for tests that run containers. It imports nothing of the project, and only tests import it.
package containertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Build builds packetwalk-app, which containers run, in a folder.
func Build(dir string) (binary string, err error) { return BuildProgram(dir, "packetwalk-app") }

// BuildProgram builds a program of the project's in a folder.
func BuildProgram(dir, name string) (binary string, err error) {
	binary = filepath.Join(dir, name)
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "packetwalk.dev/cmd/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return binary, nil
}

// Deep makes directories in each other below dir, as containers may: so many that a path to the last is longer than the kernel takes.
func Deep(t testing.TB, dir string, levels int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range levels {
		if err == nil {
			err = unix.Mkdirat(fd, "d", 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		var next int
		next, err = unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
}

// FewFiles lets this process have no more open than 256 files while the test runs.
func FewFiles(t testing.TB) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) })
}
