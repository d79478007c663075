package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	utilexec "k8s.io/utils/exec"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/pods/nodeapi"
	"packetwalk.dev/internal/testing/kerneltest"
)

const testCgroup = "packetwalk-command-test"

// inSpace is a runner and a place in a new namespace.
func inSpace(t *testing.T) (Runner, Place) {
	kerneltest.NeedRoot(t)
	if err := AdoptOrphans(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	space, err := netns.Create(filepath.Join(dir, "pod"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Remove() })
	resolver := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(resolver, []byte("nameserver 192.0.2.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + testCgroup)
		for _, dir := range append(groups, "/sys/fs/cgroup/"+testCgroup) {
			_ = os.Remove(dir)
		}
	})
	return Runner{Dir: filepath.Join(dir, "state"), Cgroup: testCgroup}, Place{space.Path(), "web-0", resolver}
}

// run gives what a shell's script printed, and its status.
func run(t *testing.T, r Runner, at Place, script string, tty bool) (string, int) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s := nodeapi.Streams{Stdin: strings.NewReader("typed\n"), Stdout: &out}
	if !tty {
		s.Stderr = &errs
	}
	err := r.Run(ctx, at, []string{"sh", "-c", script}, tty, s)
	var exit utilexec.CodeExitError
	switch {
	case errors.As(err, &exit):
		return out.String() + errs.String(), exit.Code
	case err != nil:
		t.Fatalf("%v\n%s", err, &out)
	}
	return out.String() + errs.String(), 0
}

// TestRun: a command is in the namespace, with its own name servers, and its output, input and status are the client's.
func TestRun(t *testing.T) {
	r, at := inSpace(t)
	for script, want := range map[string]string{
		"cat; echo wrong >&2; exit 7":        "typed\nwrong\n",
		"hostname; cat /etc/resolv.conf":     "web-0\nnameserver 192.0.2.1\n",
		"ls /sys/class/net":                  "lo\n",
		"id -u; grep CapEff /proc/$$/status": "65534\nCapEff:\t0000000000002000\n",
	} {
		out, code := run(t, r, at, script, false)
		if out != want || code != map[bool]int{true: 7}[strings.Contains(script, "exit 7")] {
			t.Errorf("%s: status %d:\n%s", script, code, out)
		}
	}
	if out, code := run(t, r, at, "tty; read x; echo got $x; exit 3", true); !strings.Contains(out, "/dev/pts/0") || !strings.Contains(out, "got typed") || code != 3 {
		t.Errorf("on a terminal: status %d:\n%s", code, out)
	}
	if err := r.Run(t.Context(), at, []string{"no-such-program"}, false, nodeapi.Streams{}); !strings.Contains(err.Error(), "127") {
		t.Error(err)
	}
	nothingLeft(t, r)
}

// TestRunIsConfined: a command cannot change anything of the machine, and does not see its files.
func TestRunIsConfined(t *testing.T) {
	r, at := inSpace(t)
	for _, script := range []string{
		"touch /x", "touch /usr/x", "touch /tmp/x", "touch /dev/shm/x", "cat /etc/shadow", "ls /root", "ls /var/lib", "ls /run", "chmod 000 /dev/null",
		"echo 1 > /proc/sys/net/ipv4/ip_forward", "mount -t tmpfs x /usr", "ip link set lo down", "kill -0 " + "2147483000",
		"unshare -r true", "setpriv --reuid=0 true", "chmod 755 /proc/1/exe",
		"for f in /proc/$$/fd/*; do readlink $f; done | grep -v ^pipe:",
	} {
		if out, code := run(t, r, at, script, false); code == 0 {
			t.Errorf("%s: worked:\n%s", script, out)
		}
	}
	nothingLeft(t, r)
}

// TestRunIsBounded: a command that starts more processes than it may is refused them, and the kernel has its limit of memory.
func TestRunIsBounded(t *testing.T) {
	r, at := inSpace(t)
	many := fmt.Sprintf("for i in $(seq %d); do sleep 100 & done; true", maxTasks+1)
	if out, _ := run(t, r, at, many, false); !strings.Contains(out, "fork") {
		t.Errorf("%d processes were started: %.200q", maxTasks+1, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, at, []string{"sleep", "100"}, false, nodeapi.Streams{}) }()
	for found := ""; found != strconv.FormatInt(maxMemory, 10)+"\n"; time.Sleep(20 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("the limit of memory is %q", found)
		}
		for _, file := range []string{"memory/" + r.Cgroup + "/" + prefix + "*/memory.limit_in_bytes", r.Cgroup + "/" + prefix + "*/memory.max"} {
			if files, _ := filepath.Glob("/sys/fs/cgroup/" + file); len(files) == 1 {
				text, _ := os.ReadFile(files[0])
				found = string(text)
			}
		}
	}
	cancel()
	<-ended
	nothingLeft(t, r)
}

// TestRunEndsAtOnce: a command whose context ends while runc makes or starts it ends too.
func TestRunEndsAtOnce(t *testing.T) {
	r, at := inSpace(t)
	for after := range 25 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(after)*10*time.Millisecond)
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx, at, []string{"sleep", "100"}, false, nodeapi.Streams{}) }()
		select {
		case err := <-ended:
			if err == nil {
				t.Error("no error")
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("a command whose context ended after %d ms does not end", after*10)
		}
		cancel()
	}
	nothingLeft(t, r)
}

// TestRunEnds: a command, and what it started, ends with its context.
func TestRunEnds(t *testing.T) {
	r, at := inSpace(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	var out bytes.Buffer
	err := r.Run(ctx, at, []string{"sh", "-c", "setsid sleep 1234567 & trap '' TERM; sleep 1234567"}, false, nodeapi.Streams{Stdout: &out})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 20*time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	nothingLeft(t, r)
}

// nothingLeft checks that nothing is left of commands: no file, no process, no control group.
func nothingLeft(t *testing.T, r Runner) {
	t.Helper()
	for _, pattern := range []string{r.Dir + "/" + prefix + "*", r.Dir + "/runc/*", "/sys/fs/cgroup/" + r.Cgroup + "/" + prefix + "*",
		"/sys/fs/cgroup/*/" + r.Cgroup + "/" + prefix + "*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte("1234567")) {
			t.Errorf("%s still runs", file)
		}
	}
}
