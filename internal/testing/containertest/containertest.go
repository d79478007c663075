// Package containertest is for tests that run containers. Of the project it imports only base/sudouser, and only tests import it.
package containertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/sudouser"
)

// Build builds packetwalk-app, which containers run, in a folder.
func Build(dir string) (binary string, err error) { return BuildProgram(dir, "packetwalk-app") }

// BuildProgram builds a program of the project's in a folder.
func BuildProgram(dir, name string) (binary string, err error) {
	binary = filepath.Join(dir, name)
	return binary, GoBuild(binary, "packetwalk.dev/cmd/"+name)
}

// GoBuild builds a package, or a Go file, that needs no library, as the user who called sudo: the go command's caches are theirs.
func GoBuild(binary, pkg string) error {
	caller, err := sudouser.Get()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if c := caller.Credential; c != nil {
		if err := os.Chown(dir, int(c.Uid), int(c.Gid)); err != nil {
			return err
		}
	}
	made := filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", made, pkg)
	build.Env = append(caller.Environment(), "CGO_ENABLED=0")
	build.SysProcAttr = &syscall.SysProcAttr{Credential: caller.Credential}
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	content, err := os.ReadFile(made)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(binary), 0o755); err != nil {
		return err
	}
	return os.WriteFile(binary, content, 0o755)
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
