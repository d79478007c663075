package tours

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"golang.org/x/sys/unix"

	"packetwalk.dev/test/world"
)

// ownPage is a tour of one's own that needs no lab.
const ownPage = "# Own\n\n## What is it?\n\n```console\n$ echo one\none\n$ cat file; echo $PACKETWALK_LAB\nof the page\n…\n$ %s\n%s```\n\nThat.\n"

// ownFolder makes a folder with ownPage, whose last command has this output there.
func ownFolder(t *testing.T, command, output string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"README.md": fmt.Sprintf(ownPage, command, output), "file": "of the page\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestOwn: a folder of one's own; what differs is exit status 1, and written into the page with --update.
func TestOwn(t *testing.T) {
	w := world.New(t, "tours-own")
	dir := ownFolder(t, "echo two", "")
	out, err := w.Try(time.Minute, "tour", dir, "--yes", "--name", w.Name)
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != 1 || !strings.Contains(out, "3 steps in") || !strings.Contains(out, "  here: two\n") {
		t.Errorf("%v\n%s", err, out)
	}
	w.Run(t, "tour", dir, "--update", "--name", w.Name)
	if out := w.Run(t, "tour", dir, "--yes", "--name", w.Name); !strings.Contains(out, "0 not as the page has it") {
		t.Error(out)
	}
}

// TestTerminal: Enter runs what is on the screen, another line runs as the reader's command, and q ends the tour. Ctrl-C ends an own command
// and not the tour, and what is typed while a step runs is dropped.
func TestTerminal(t *testing.T) {
	w := world.New(t, "tours-own")
	typed := filepath.Join(t.TempDir(), "typed")
	p := onTerminal(t, w, "tour", ownFolder(t, "echo begun; "+untilThere(typed)+"; echo two", "begun\ntwo\n"), "--name", w.Name)
	p.await("$ echo one")
	p.await("step 1 of 3: Enter runs it")
	p.write("echo own $((6 * 7)) of $PACKETWALK_LAB\n")
	p.await("own 42 of " + w.Name + "\r\n")
	p.await("$ echo one")
	p.await("own command: ")
	p.write("read x; echo got $x\n")
	p.write("typed\n")
	p.await("got typed\r\n")
	p.await("own command: ")
	p.write("echo asleep $((40 + 2)); sleep 1000\n")
	p.await("asleep 42\r\n")
	p.write("\x03")
	p.await("own command: ")
	p.write("\n")
	p.await("\none\r\n")
	p.await("step 2 of 3")
	p.write("b\n")
	p.await("$ echo one")
	p.write("\n")
	p.await("\none\r\n")
	p.await("own command: ")
	p.write("\n")
	p.await("of the page")
	p.await("own command: ")
	p.write("\n")
	p.await("begun\r\n")
	p.write("\n\n")
	p.writeFile(typed)
	p.await("two\r\n")
	if status := p.end(); status != 0 {
		t.Errorf("exit status %d:\n%s", status, p.screen())
	}
	p.unchanged()
}

// TestTerminalQuit: q ends the tour, and the step on the screen does not run. Lines that are typed while a step runs answer no prompt.
func TestTerminalQuit(t *testing.T) {
	w := world.New(t, "tours-own")
	folder := ownFolder(t, "echo two", "")
	page, typed := filepath.Join(folder, "README.md"), filepath.Join(t.TempDir(), "typed")
	text := "# T\n```console\n$ echo begun; " + untilThere(typed) + "; echo one\nbegun\none\n$ echo t$((1))o\nt1o\n```\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := onTerminal(t, w, "tour", folder, "--name", w.Name)
	p.await("own command: ")
	p.write("\n")
	p.await("begun\r\n")
	p.write("\n\n\n")
	p.writeFile(typed)
	p.await("own command: ")
	time.Sleep(300 * time.Millisecond) // a queued line would answer the prompt meanwhile
	p.write("q\n")
	if status := p.end(); status != 0 {
		t.Errorf("exit status %d:\n%s", status, p.screen())
	}
	if strings.Contains(p.screen(), "t1o") {
		t.Errorf("a command ran that was not asked for:\n%s", p.screen())
	}
}

// TestInterrupt: Ctrl-C at the prompt and while a command runs ends the tour and the command, and leaves the terminal as it was.
func TestInterrupt(t *testing.T) {
	w := world.New(t, "tours-own")
	for _, running := range []bool{false, true} {
		pid, command := filepath.Join(t.TempDir(), "pid"), 0
		p := onTerminal(t, w, "tour", ownFolder(t, "echo $$ > "+pid+"; exec sleep 1000", ""), "--name", w.Name)
		p.await("own command: ")
		if running {
			p.write("\n")
			p.await("own command: ")
			p.write("\n")
			p.await("own command: ")
			p.write("\n")
			eventually.Succeeds(t, time.Minute, func() error { // the file may be there and empty
				text, err := os.ReadFile(pid)
				if err == nil {
					_, err = fmt.Sscan(string(text), &command)
				}
				return err
			})
		}
		p.write("\x03")
		if status := p.end(); status != 130 {
			t.Errorf("exit status %d:\n%s", status, p.screen())
		}
		p.unchanged()
		if running && syscall.Kill(command, 0) == nil {
			t.Errorf("the command is still there: process %d", command)
		}
	}
}

// untilThere returns a command that ends when a file is there.
func untilThere(file string) string { return "while ! test -e " + file + "; do sleep 0.1; done" }

// A pty is a program on a terminal.
type pty struct {
	t    *testing.T
	side *os.File // ours
	cmd  *exec.Cmd
	was  unix.Termios // attributes before the program started

	mu   sync.Mutex
	seen bytes.Buffer
	from int // of seen: what await has not consumed
}

func onTerminal(t *testing.T, w *world.World, args ...string) *pty {
	t.Helper()
	side, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = side.Close() })
	if err := unix.IoctlSetPointerInt(int(side.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(side.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() }) // held open, so that the terminal's attributes can be read at the end
	// Wide enough for the prompt of a machine with a long name.
	if err := unix.IoctlSetWinsize(int(side.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 250}); err != nil {
		t.Fatal(err)
	}
	p := &pty{t: t, side: side, cmd: w.Command(args...)}
	p.was = p.attributes()
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = other, other, other
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := side.Read(buf)
			if err != nil {
				return
			}
			p.mu.Lock()
			p.seen.Write(buf[:n])
			p.mu.Unlock()
		}
	}()
	return p
}

func (p *pty) screen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

// await waits for a text behind the one awaited before.
func (p *pty) await(text string) {
	p.t.Helper()
	eventually.Succeeds(p.t, time.Minute, func() error {
		screen := p.screen()
		i := strings.Index(screen[p.from:], text)
		if i < 0 {
			return fmt.Errorf("no %q on the screen:\n%s", text, screen[p.from:])
		}
		p.from += i + len(text)
		return nil
	})
}

func (p *pty) write(text string) {
	p.t.Helper()
	if _, err := p.side.WriteString(text); err != nil {
		p.t.Fatal(err)
	}
}

// writeFile makes an empty file.
func (p *pty) writeFile(path string) {
	p.t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// end waits for the end of the tour and gives its exit status.
func (p *pty) end() int {
	p.t.Helper()
	kill := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait() // the status says it
	return p.cmd.ProcessState.ExitCode()
}

// unchanged checks that the terminal has the attributes that it had before the program started.
func (p *pty) unchanged() {
	p.t.Helper()
	if is := p.attributes(); is != p.was {
		p.t.Errorf("the terminal was %+v and is %+v", p.was, is)
	}
}

func (p *pty) attributes() unix.Termios {
	p.t.Helper()
	a, err := unix.IoctlGetTermios(int(p.side.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *a
}
