//go:build linux

package program_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
)

func TestOutput(t *testing.T) {
	for _, test := range []struct {
		name    string
		command program.Command
		out     string
		err     string
	}{
		{"prints", program.Command{Path: "sh", Args: []string{"-c", "echo $0 $1; cat", "a", "b"}, Stdin: []byte("in\n")}, "a b\nin\n", ""},
		{"by another name", program.Command{Path: "/bin/sh", Name: "sh", Args: []string{"-c", "cat /proc/$$/cmdline | cut -c1-2"}}, "sh\n", ""},
		{"fails", program.Command{Path: "sh", Args: []string{"-c", "echo some; echo it is >&2; echo so >&2; exit 3"}}, "some\n",
			"exit status 3: it is so"},
		{"is not there", program.Command{Path: "iptables-nowhere"}, "", "apt-get install iptables"},
		{"takes too long", program.Command{Path: "sh", Args: []string{"-c", "echo some; sleep 1000"}, Limit: 3 * time.Second}, "some\n",
			"it did not end within 3s and was killed"},
		{"prints too much", program.Command{Path: "sh", Args: []string{"-c", "echo some; exec yes"}, MaxOutput: 7}, "some\ny\n",
			"it printed more than 7 bytes and was ended"},
		{"complains too much", program.Command{Path: "sh", Args: []string{"-c", "echo some; yes 2>&- | head -c 1000000 >&2"}}, "some\n", ""},
		{"leaves something behind", program.Command{Path: "sh", Args: []string{"-c", "sleep 1000 & echo some"}}, "some\n",
			"left something behind"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := test.command.Output(t.Context())
			if string(out) != test.out {
				t.Errorf("printed %q, want %q", out, test.out)
			}
			if fmt.Sprint(err) != "<nil>" && test.err == "" || test.err != "" && !strings.Contains(fmt.Sprint(err), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

// TestNotStarted: a program that is not for this machine is told from one that ran and failed.
func TestNotStarted(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	for path, want := range map[string]bool{
		file("plain", "#!/bin/sh\n", 0o644): true, file("other", "MZ", 0o755): true, file("unlinked", "#!/bin/sh\nexit 127\n", 0o755): true,
		dir + "/nowhere": true, "program-nowhere": true, dir: true,
		file("fails", "#!/bin/sh\nexit 1\n", 0o755): false, file("killed", "#!/bin/sh\nkill -9 $$\n", 0o755): false,
		file("runs", "#!/bin/sh\n", 0o755):             false,
		file("slow", "#!/bin/sh\nsleep 1000\n", 0o755): false,
	} {
		limit := time.Minute
		if filepath.Base(path) == "slow" {
			limit = 100 * time.Millisecond
		}
		_, err := program.Command{Path: path, Limit: limit}.Output(t.Context())
		if got := program.NotStarted(err); got != want {
			t.Errorf("%s: %v; not started: %v, want %v", path, err, got, want)
		}
	}
}

// started waits until a script has written the numbers of two processes, its own and its child's, and gives descriptors of both, so that
// their end can be waited for whoever their parent is.
func started(t *testing.T, path string) []unix.PollFd {
	t.Helper()
	for {
		text, _ := os.ReadFile(path)
		fields := strings.Fields(string(text))
		if len(fields) < 2 || !strings.HasSuffix(string(text), "\n") {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		var fds []unix.PollFd
		for _, f := range fields {
			pid, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		return fds
	}
}

func waitEnd(t *testing.T, fds ...unix.PollFd) {
	t.Helper()
	for i := range fds {
		if n, err := unix.Poll(fds[i:i+1], 30_000); err != nil || n != 1 {
			t.Fatalf("process %d of %d goes on: %v", i+1, len(fds), err)
		}
	}
}

const slow = `sleep 1000 & echo $$ $! > "$0"; wait`

// TestEndsWithContext: a program and what it started are gone when its caller's context has ended.
func TestEndsWithContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pids")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("told to stop")
	ended := make(chan error)
	go func() {
		_, err := program.Command{Path: "sh", Args: []string{"-c", slow, path}}.Output(ctx)
		ended <- err
	}()
	fds := started(t, path)
	cancel(why)
	if err := <-ended; !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
	waitEnd(t, fds...)
}

// TestEndsWithProcess: a program ends when the process that runs it is killed.
func TestEndsWithProcess(t *testing.T) {
	path := os.Getenv("PROGRAM_TEST_PIDS")
	if path != "" { // the process to be killed
		_, err := program.Command{Path: "sh", Args: []string{"-c", slow, path}}.Output(context.Background())
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "pids")
	cmd := exec.Command(os.Args[0], "-test.run=^TestEndsWithProcess$")
	cmd.Env = append(os.Environ(), "PROGRAM_TEST_PIDS="+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fds := started(t, path)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	waitEnd(t, fds[0])
	_ = unix.PidfdSendSignal(int(fds[1].Fd), syscall.SIGKILL, nil, 0) // what a program starts is its own to end
}

// TestAddSystemPath: what the user has comes first, and no directory twice.
func TestAddSystemPath(t *testing.T) {
	for path, want := range map[string]string{
		"":                                 program.Path,
		"/opt/bin:/usr/bin":                "/opt/bin:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin",
		program.Path + ":/usr/local/games": program.Path + ":/usr/local/games",
	} {
		t.Setenv("PATH", path)
		if err := program.AddSystemPath(); err != nil || os.Getenv("PATH") != want {
			t.Errorf("%q becomes %q, %v", path, os.Getenv("PATH"), err)
		}
	}
}
