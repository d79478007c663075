package container_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
)

// everyProcess lists the command lines of what a container sees, and the pids with them.
const everyProcess = `for p in /proc/[0-9]*; do echo "${p#/proc/} $(tr '\0' ' ' <$p/cmdline)"; done`

// below is a container whose process namespace is below another's.
func (m *machine) below(above *container.Container, app string, command ...string) *container.Container {
	m.Helper()
	s := m.spec(app, command...)
	s.ProcessesBelow = above.Spec().Dir
	return m.start(s)
}

// TestProcessNamespaceBelowAnother: what is in the upper one sees the processes of all below it, can end them, and sees none of another one
// or of the machine; each below sees its own, with its command as number 1. All end with the upper one.
func TestProcessNamespaceBelowAnother(t *testing.T) {
	m := newMachine(t)
	node, other := m.start(m.spec("pause")), m.start(m.spec("pause"))
	application, command := m.below(node, "whereami"), m.below(node, "ubuntu", "sleep", "4242")
	m.below(other, "ubuntu", "sleep", "7777")
	s := m.spec("ubuntu", "sleep", "1000")
	s.ProcessesOf = node.Spec().Dir
	host := m.start(s)

	seen := m.run(host, "sh", "-c", everyProcess)
	contains(t, seen, "1 packetwalk-app ", "sleep 1000", "sleep 4242", application.Spec().Dir)
	for _, foreign := range []string{"7777", os.Args[0], container.StageShim + " "} {
		if strings.Contains(seen, foreign) {
			t.Errorf("%q is to be seen: %s", foreign, seen)
		}
	}
	seen = m.run(command, "sh", "-c", everyProcess)
	if contains(t, seen, "1 sleep 4242"); strings.Contains(seen, "1000") || strings.Contains(seen, "packetwalk-app") {
		t.Errorf("of others is to be seen: %s", seen)
	}
	for what, link := range map[string]string{"root": "/proc/1/root", "program": "/proc/1/exe"} {
		if got := m.run(host, "sh", "-c", "readlink "+link+" || echo guarded"); got != "guarded\n" {
			t.Errorf("%s of the first process: %q", what, got)
		}
	}

	// Its starter sees how one ended, whoever ends it.
	m.run(host, "sh", "-c", `kill -9 $(grep -lz '^4242$' /proc/[0-9]*/cmdline | cut -d/ -f3 | head -1)`)
	if e := m.wait(command); e.Signal != int(unix.SIGKILL) || e.Reason != container.ReasonError {
		t.Errorf("exit %+v", e)
	}
	if err := unix.Kill(application.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := m.wait(application); e.Signal != int(unix.SIGKILL) || e.Reason != container.ReasonError {
		t.Errorf("exit %+v", e)
	}
	last := m.below(node, "whereami")
	if err := node.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*container.Container{last, host} {
		if e := m.wait(c); e.Signal != int(unix.SIGKILL) {
			t.Errorf("exit %+v", e)
		}
	}
	s = m.spec("whereami")
	s.ProcessesBelow = node.Spec().Dir
	if c, err := m.runtime.Start(context.Background(), s); err == nil {
		c.Remove()
		t.Error("started below a process namespace that has ended")
	} else {
		contains(t, err.Error(), container.ErrNotRunning.Error())
	}
}

// TestStartFailuresBelow: why there is no container is heard also from below, and nothing is left.
func TestStartFailuresBelow(t *testing.T) {
	m := newMachine(t)
	node := m.start(m.spec("pause"))
	for command, message := range map[string]string{"nosuch-command": `exec: "nosuch-command": executable file not found in $PATH`,
		"/nginx": "/nosuch/volume"} {
		s := m.spec("nginx", command)
		if command == "/nginx" {
			s = m.spec("whereami")
			s.Mounts = []container.Mount{{Source: "/nosuch/volume", Destination: "/v"}}
		}
		s.ProcessesBelow = node.Spec().Dir
		c, err := m.runtime.Start(context.Background(), s)
		if err == nil {
			c.Remove()
			t.Errorf("%s started", command)
			continue
		}
		contains(t, err.Error(), message)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := node.Stop(ctx, 5*time.Second); err != nil || node.Exit().Code != 0 {
		t.Errorf("%v, %+v", err, node.Exit())
	}
}

// TestNothingIsLeftInAnothersProcesses: what a container in another's process namespace has left ends with its command, also without
// control groups, and nothing else does.
func TestNothingIsLeftInAnothersProcesses(t *testing.T) {
	m := newMachine(t)
	node := m.start(m.spec("pause"))
	other := m.spec("ubuntu", "sleep", "1000")
	other.ProcessesOf = node.Spec().Dir
	stays := m.start(other)
	s := m.spec("ubuntu", "sh", "-c", "for n in 1 2 3; do setsid sleep 471$n & done")
	s.ProcessesOf = node.Spec().Dir
	if e := m.wait(m.start(s)); e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
	m.awaitTwo(node)
	if got := m.run(stays, "echo", "on"); got != "on\n" {
		t.Errorf("the other one: %q", got)
	}
}

// awaitTwo waits until two processes are in the container's process namespace, those that have ended are buried.
func (m *machine) awaitTwo(c *container.Container) {
	m.Helper()
	there := inProcessesOf(m.T, c)
	for deadline := time.Now().Add(20 * time.Second); len(there) > 2 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		there = inProcessesOf(m.T, c)
	}
	if len(there) != 2 {
		m.Errorf("there are %v", there)
	}
}

// TestNothingIsLeftOfOneWithoutShim: what a container in another's process namespace has left ends also when its shim was killed, whoever
// sees that and when, also what has a root of its own by then, and nothing else does.
func TestNothingIsLeftOfOneWithoutShim(t *testing.T) {
	m := newMachine(t)
	node := m.start(m.spec("pause"))
	other := m.spec("ubuntu", "sleep", "1000")
	other.ProcessesOf = node.Spec().Dir
	m.start(other)
	for _, seen := range []bool{true, false} {
		s := m.spec("busybox", "sh", "-c", "mkdir /j; cp -r /usr /bin /lib* /j; setsid chroot /j sleep 4712 & setsid sleep 4713 & "+
			"sleep 0.5; echo on; exec sleep 4714")
		s.ProcessesOf = node.Spec().Dir
		starter := m.starterOf(s)
		if seen {
			m.start(s)
		} else if err := starter.Start(); err != nil {
			t.Fatal(err)
		}
		for log, deadline := "", time.Now().Add(20*time.Second); !strings.Contains(log, "on\n"); time.Sleep(time.Millisecond) {
			text, _ := os.ReadFile(s.LogPath)
			if log = string(text); time.Now().After(deadline) {
				t.Fatalf("log %q", log)
			}
		}
		if !seen {
			_ = starter.Process.Kill()
			_ = starter.Wait()
		}
		if there := inProcessesOf(t, node); len(there) != 5 {
			text, _ := os.ReadFile(s.LogPath)
			t.Errorf("there are %v: %s", there, text)
		}
		for _, pid := range processesOf(s.Dir) {
			n, _ := strconv.Atoi(pid)
			_ = unix.Kill(n, unix.SIGKILL)
		}
		c, err := m.runtime.Adopt(s.Dir)
		if err != nil {
			t.Fatal(err)
		}
		m.wait(c)
		m.awaitTwo(node)
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	}
}

// TestStartsBelowThatAreKilled: a pod with the node's processes ends all that starts there, at whatever moment: starts fail, and nothing of
// them is left that would keep the node's process namespace.
func TestStartsBelowThatAreKilled(t *testing.T) {
	m := newMachine(t)
	node := m.start(m.spec("pause"))
	s := m.spec("ubuntu", "sh", "-c", "n=0; while :; do kill -9 -1; n=$(((n+997)%7919)); i=0; while [ $i -lt $n ]; do i=$((i+1)); done; done")
	s.ProcessesOf = node.Spec().Dir
	m.start(s)
	for _, app := range []string{"whereami", "ubuntu"} {
		for range 30 {
			s := m.spec(app)
			s.ProcessesBelow = node.Spec().Dir
			if c, err := m.runtime.Start(context.Background(), s); err == nil {
				_ = c.Remove()
			}
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- node.Kill() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the node's process namespace does not end")
	}
}

// TestSignalsBelow: what is about to become a program below another process namespace takes signals, and has none of our handlers for them,
// which would run without the runtime. It is held up there: opening its program waits for the end of a lease (fcntl(2)).
func TestSignalsBelow(t *testing.T) {
	m := newMachine(t)
	node := m.start(m.spec("pause"))
	fd, err := unix.PidfdOpen(node.Pid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()
	path := filepath.Join(t.TempDir(), "true")
	program, err := os.ReadFile("/bin/true")
	if err == nil {
		err = os.WriteFile(path, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	lease, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close() // which ends it
	if _, err := unix.FcntlInt(lease.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		proc, err := container.StartBelow(context.Background(), binary, path, pidfd)
		if err == nil {
			_, err = proc.Wait()
		}
		ended <- err
	}()
	var signals map[string]string
	for deadline := time.Now().Add(20 * time.Second); strings.Trim(signals["SigBlk"], "0") != "" || signals == nil; {
		if time.Sleep(time.Millisecond); time.Now().After(deadline) {
			t.Fatal("nothing begins below")
		}
		signals = childBelow()
	}
	if got := signals["SigCgt"]; strings.Trim(got, "0") != "" {
		t.Errorf("signals with a handler: %s", got)
	}
	lease.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// childBelow is the status of a child of ours that is two process namespaces below (proc_pid_status(5)), nil for none.
func childBelow() map[string]string {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range files {
		pids, _ := os.ReadFile(file)
		for pid := range strings.FieldsSeq(string(pids)) {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%s/status", pid))
			status := map[string]string{}
			for line := range strings.Lines(string(text)) {
				name, value, _ := strings.Cut(line, ":")
				status[name] = strings.TrimSpace(value)
			}
			if len(strings.Fields(status["NSpid"])) == 3 {
				return status
			}
		}
	}
	return nil
}
