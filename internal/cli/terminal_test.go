//go:build linux

package cli

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a pseudo-terminal of so many columns.
func terminal(t *testing.T, columns uint16) *os.File {
	t.Helper()
	side, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = side.Close() })
	fd := int(side.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	return other
}

// TestScreen checks that only a terminal has colours and a width, unless the user says otherwise.
func TestScreen(t *testing.T) {
	tty := terminal(t, 72)
	t.Setenv("TERM", "xterm")
	for _, tt := range []struct {
		colour        when
		noColour      string
		onTTY, onPipe bool
	}{
		{"auto", "", true, false}, {"auto", "1", false, false}, {"always", "1", true, true}, {"never", "", false, false},
	} {
		t.Setenv("NO_COLOR", tt.noColour)
		if got := tt.colour.screen(tty); got != (screen{tt.onTTY, 72}) {
			t.Errorf("%+v on a terminal: %+v", tt, got)
		}
		if got := tt.colour.screen(&bytes.Buffer{}); got != (screen{tt.onPipe, 0}) {
			t.Errorf("%+v elsewhere: %+v", tt, got)
		}
	}
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "dumb")
	if when("auto").screen(tty).colour {
		t.Error("colours on a dumb terminal")
	}
}
