package container_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/pods/container"
)

func TestExec(t *testing.T) {
	m := newMachine(t)
	s := m.spec("agnhost")
	s.Env = []string{"GREETING=hello"}
	s.WorkingDir = "/etc"
	c := m.start(s)
	for _, tt := range []struct {
		e    container.Exec
		out  string
		code int
	}{
		{container.Exec{Args: []string{"sh", "-c", "echo $GREETING $HOSTNAME $(pwd) $(hostname); exit 7"}}, "hello box /etc box\n", 7},
		{container.Exec{Args: []string{"cat"}, Stdin: strings.NewReader("from stdin")}, "from stdin", 0},
		{container.Exec{Args: []string{"sh", "-c", "kill -TERM $$"}}, "", 143},
		{container.Exec{Args: []string{"sh", "-c", "sleep 1000 & echo first"}}, "first\n", 0},
		{container.Exec{Args: []string{"sh", "-c", "tty; stty size"}, TTY: true, Resize: sizes(80, 24)}, "/dev/pts/", 0},
		{container.Exec{Args: []string{"sh", "-c", "read line; echo got $line"}, TTY: true, Stdin: strings.NewReader("typed\n")}, "got typed\r\n",
			0},
		{container.Exec{Args: []string{"nosuch"}}, "", 127},
		{container.Exec{Args: []string{"/etc/hosts"}}, "", 126},
	} {
		var out bytes.Buffer
		tt.e.Stdout = &out
		code, err := c.Exec(context.Background(), tt.e)
		if code != tt.code || !strings.Contains(out.String(), tt.out) || (err != nil) != (code == 126 || code == 127) {
			t.Errorf("%q: exit status %d, %v, output %q", tt.e.Args, code, err, out.String())
		}
	}
}

// What any process of a container writes to the first one's standard streams is in the log, whole, whoever is first and whatever the user.
func TestLogOfOtherProcesses(t *testing.T) {
	m := newMachine(t)
	id := int64(1000)
	user := m.spec("ubuntu", "sh", "-c", "echo own > /dev/stdout; exec sleep 1000")
	user.UID = &id
	terminal := m.spec("ubuntu", "sh", "-c", "echo own; exec sleep 1000")
	terminal.TTY = true
	ends := m.spec("ubuntu", "sh", "-c", "echo own; until test -e /tmp/end; do sleep 0.05; done")
	for _, s := range []container.Spec{m.spec("agnhost"), user, terminal, ends} {
		c := m.start(s)
		if s.App != "agnhost" {
			m.awaitLog(c)
		}
		m.run(c, "sh", "-c", "echo hi > /proc/1/fd/1; echo oh >> /proc/1/fd/2; echo x > /proc/1/fd/new || seq 20000 > /proc/1/fd/1")
		if s.App == "ubuntu" && s.Command[2] == ends.Command[2] {
			// The command may end with the container.
			if _, err := c.Exec(t.Context(), container.Exec{Args: []string{"touch", "/tmp/end"}}); err != nil {
				t.Error(err)
			}
			if e := m.wait(c); e.Code != 0 {
				t.Errorf("exit %+v", e)
			}
		} else if err := c.Stop(context.Background(), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		log := strings.ReplaceAll(m.log(c), "\r\n", "\n")
		contains(t, log, "hi\n", "oh\n", "\n20000\n")
		if s.App != "agnhost" {
			contains(t, log, "own\n")
		}
		if got := strings.Count(log, "\n"); got < 20002 {
			t.Errorf("%d lines", got)
		}
	}
}

func sizes(width, height uint16) <-chan container.Size {
	c := make(chan container.Size, 1)
	c <- container.Size{Width: width, Height: height}
	return c
}

func TestExecEndsWithItsContext(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("agnhost"))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Exec(ctx, container.Exec{Args: []string{"sleep", "1000"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestExecGetsLargeOutputWhole(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("agnhost"))
	out := m.run(c, "sh", "-c", "head -c 3000000 /dev/zero")
	if len(out) != 3000000 {
		t.Errorf("got %d bytes", len(out))
	}
}

func TestAttach(t *testing.T) {
	m := newMachine(t)
	s := m.spec("busybox")
	s.Stdin, s.TTY = true, true
	c := m.start(s)
	in, keyboard, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- c.Attach(context.Background(), container.Streams{Stdin: in, Stdout: &out, Resize: sizes(101, 41)})
	}()
	keyboard.WriteString("sleep 0.2; stty size; tty; exit 4\n")
	defer keyboard.Close()
	if e := m.wait(c); e.Code != 4 {
		t.Errorf("exit %+v", e)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	contains(t, out.String(), "41 101", "/dev/pts/0")
	contains(t, m.log(c), "41 101")

	s = m.spec("ubuntu", "cat")
	s.Stdin, s.StdinOnce = true, true
	c = m.start(s)
	out.Reset()
	if err := c.Attach(context.Background(), container.Streams{Stdin: strings.NewReader("a line\n"), Stdout: &out}); err != nil {
		t.Error(err)
	}
	if e := m.wait(c); e.Code != 0 || out.String() != "a line\n" {
		t.Errorf("exit %+v, output %q", e, out.String())
	}
}
