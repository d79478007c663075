//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"packetwalk.dev/internal/tour"
)

// A tourReader asks the person at the terminal. The terminal stays in its mode for lines.
type tourReader struct {
	in  *os.File
	out io.Writer
}

// Ask shows a prompt and waits for a line. What was typed before the prompt is dropped: it was not an answer.
func (r tourReader) Ask(ctx context.Context, prompt string) (string, error) {
	if err := unix.IoctlSetInt(int(r.in.Fd()), unix.TCFLSH, unix.TCIFLUSH); err != nil {
		return "", fmt.Errorf("drop earlier input: %w", err)
	}
	fmt.Fprint(r.out, prompt)
	type input struct {
		line string
		err  error
	}
	lines := make(chan input, 1)
	go func() {
		buffer := make([]byte, 4096) // the longest line of a terminal
		n, err := r.in.Read(buffer)
		lines <- input{string(buffer[:max(n, 0)]), err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case got := <-lines:
		if got.err != nil || got.line == "" { // Ctrl-D, or the terminal is gone
			fmt.Fprintln(r.out)
			return "", tour.ErrQuit
		}
		return strings.TrimSuffix(got.line, "\n"), nil
	}
}

// Run runs a command of the reader's in the terminal's foreground, so that Ctrl-C ends the command and not the tour.
func (r tourReader) Run(_ context.Context, command *exec.Cmd) error {
	terminal := int(r.in.Fd())
	before, err := term.GetState(terminal)
	if err != nil {
		return err
	}
	group, err := unix.IoctlGetInt(terminal, unix.TIOCGPGRP)
	if err != nil {
		return err
	}
	command.Stdin, command.Stdout, command.Stderr = r.in, r.out, r.out
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Foreground: true, Ctty: terminal}
	signal.Ignore(syscall.SIGTTOU) // taking the foreground back would stop this process
	defer signal.Reset(syscall.SIGTTOU)
	failed := command.Run()
	if err := unix.IoctlSetPointerInt(terminal, unix.TIOCSPGRP, group); err != nil {
		return fmt.Errorf("take the terminal back: %w", err)
	}
	if err := term.Restore(terminal, before); err != nil {
		return err
	}
	return failed
}
