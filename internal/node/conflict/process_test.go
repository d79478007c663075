package conflict

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

const (
	role      = "PACKETWALK_TEST_ROLE"
	roleSleep = "sleep" // a process that does nothing
	roleTake  = "take"  // one that has a part, and says so
	roleBind  = "bind"  // one that has many names of the record
	roleFlick = "flick" // one that has it now and then
	roleWorld = "world" // the test itself, in a new network namespace
)

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case roleSleep:
		time.Sleep(time.Hour)
	case roleTake:
		fmt.Println(Take("service-proxy"))
		time.Sleep(time.Hour)
	}
	if os.Getenv(role) == roleBind {
		fmt.Println(bindMany(os.Args[1]))
		time.Sleep(time.Hour)
	}
	for os.Getenv(role) == roleFlick {
		if l, err := net.Listen("unix", recordName+"service-proxy"); err == nil {
			time.Sleep(50 * time.Microsecond)
			_ = l.Close()
		}
	}
	os.Exit(m.Run())
}

// impostorNames is how many names an impostor takes.
const impostorNames = 200

// bindMany takes names of the record, and listens at them or not; those that are full have no room for one more client.
func bindMany(how string) error {
	for n := range impostorNames {
		at := &unix.SockaddrUnix{Name: recordName + "service-proxy"}
		if n > 0 {
			at.Name += fmt.Sprint("#", n)
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err := errors.Join(err, unix.Bind(fd, at)); err != nil {
			return err
		}
		if how == "bind" {
			continue
		}
		if err := unix.Listen(fd, 0); err != nil {
			return err
		}
		for how == "full" {
			client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			if err := unix.Connect(client, at); errors.Is(err, unix.EAGAIN) {
				break
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// inWorld runs the test again in a new network namespace, and reports whether it runs in that.
func inWorld(t *testing.T) bool {
	kerneltest.NeedRoot(t)
	if os.Getenv(role) == roleWorld {
		lo, err := netlink.LinkByName("lo")
		if err := errors.Join(err, netlink.LinkSetUp(lo)); err != nil {
			t.Fatal(err)
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), role+"="+roleWorld)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	return false
}

// start starts this program under another name and in another role, and gives what ends it, and what takes its status.
func start(t *testing.T, r string, attr syscall.SysProcAttr, path string, args ...string) *exec.Cmd {
	t.Helper()
	attr.Pdeathsig = syscall.SIGKILL
	cmd := &exec.Cmd{Path: path, Args: append([]string{path}, args...), Env: append(os.Environ(), role+"="+r), SysProcAttr: &attr}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func look(t *testing.T) []string {
	t.Helper()
	found, err := ServiceProxies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestProcesses: kube-proxy counts by its name or its command line, where it is root's, alive, and in this network namespace.
func TestProcesses(t *testing.T) {
	if !inWorld(t) {
		return
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil { //nolint:gosec // for another user
		t.Fatal(err)
	}
	program := copyOf(t, dir, "kube-proxy")
	for _, attr := range []syscall.SysProcAttr{
		{Cloneflags: syscall.CLONE_NEWNET}, {Credential: &syscall.Credential{Uid: 65534, Gid: 65534}},
	} {
		start(t, roleSleep, attr, program)
	}
	if found := look(t); found != nil {
		t.Errorf("another namespace's, or another user's: %q", found)
	}
	cmd := start(t, roleSleep, syscall.SysProcAttr{}, program)
	if found, want := look(t), []string{fmt.Sprintf("kube-proxy (pid %d)", cmd.Process.Pid)}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, 10*time.Second, func() error { // its status has not been read: a zombie
		if found := look(t); found != nil {
			return fmt.Errorf("a zombie counts: %q", found)
		}
		return nil
	})
	for argument, want := range map[string]int{"kubelet": 0, "proxy": 1, "kube-proxy": 1} {
		hyper := start(t, roleSleep, syscall.SysProcAttr{}, copyOf(t, dir, "hyperkube"), argument)
		if found := look(t); len(found) != want {
			t.Errorf("hyperkube %s: %q", argument, found)
		}
		_ = hyper.Process.Kill()
		_ = hyper.Wait()
	}
}

// copyOf copies this program under another name.
func copyOf(t *testing.T, dir, name string) string {
	t.Helper()
	program := filepath.Join(dir, name)
	if _, err := os.Stat(program); err == nil {
		return program
	}
	text, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, os.WriteFile(program, text, 0o755)); err != nil { //nolint:gosec // a program for all
		t.Fatal(err)
	}
	return program
}
