//go:build linux

package cli

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestWhatToTry: what is said at the end of up works as it is typed, also for a user who called sudo.
func TestWhatToTry(t *testing.T) {
	kerneltest.NeedRoot(t)
	caller, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ uid, has, hasNot string }{
		"root": {"", "Try:  packetwalk kubectl --name x get nodes -o wide\n      packetwalk status --name x\n      export KUBECONFIG=", "sudo"},
		"sudo": {caller.Uid, "Try:  sudo packetwalk kubectl --name x get nodes -o wide\n      sudo packetwalk status --name x\n", "KUBECONFIG"},
	} {
		t.Run(name, func(t *testing.T) {
			self, err := os.Executable()
			dir := t.TempDir()
			if err == nil {
				err = os.Symlink(self, filepath.Join(dir, "packetwalk"))
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir)
			t.Setenv("SUDO_UID", tt.uid)
			t.Setenv("SUDO_GID", "")
			var out strings.Builder
			printNextSteps(&out, " --name x", lab.DirOf("x"))
			if !strings.Contains(out.String(), tt.has) || strings.Contains(out.String(), tt.hasNot) {
				t.Error(out.String())
			}
		})
	}
}

// TestOwnCommand: a program that PATH does not lead to is named by its file, so that a shell finds it.
func TestOwnCommand(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	for dir, want := range map[string]string{
		filepath.Dir(self):               "./" + filepath.Base(self),
		filepath.Dir(filepath.Dir(self)): filepath.Join(filepath.Base(filepath.Dir(self)), filepath.Base(self)),
		t.TempDir():                      self,
	} {
		t.Chdir(dir)
		if got := ownCommand(); got != want {
			t.Errorf("in %s: %s, want %s", dir, got, want)
		}
	}
}

// TestLogSetAside prints lines of a log that were set aside, as many as are asked for, before those of the log.
func TestLogSetAside(t *testing.T) {
	for _, tt := range []struct {
		name, aside, log string
		tail             int
		want             string
	}{
		{"all", "a\nb\n", "c\n", -1, "a\nb\nc\n"},
		{"none", "a\nb\n", "c\n", 0, ""},
		{"of the log alone", "a\nb\n", "c\n", 1, "c\n"},
		{"of both", "a\nb\n", "c\n", 2, "b\nc\n"},
		{"all of both", "a\nb\n", "c\n", 5, "a\nb\nc\n"},
		{"just set aside", "a\nb\n", "", 1, "b\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			err := errors.Join(os.WriteFile(path, []byte(tt.log), 0o600), os.WriteFile(supervise.Aside(path), []byte(tt.aside), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := copyLog(t.Context(), &out, path, tt.tail, false); err != nil || out.String() != tt.want {
				t.Errorf("%v, %q, want %q", err, out.String(), tt.want)
			}
		})
	}
}

// TestTail prints the last lines of logs, also of one that is longer than a block, and of one whose last line has no end yet.
func TestTail(t *testing.T) {
	long := strings.Repeat("x", 2*tailBlock)
	for _, tt := range []struct {
		name, log string
		tail      int
		want      string
	}{
		{"all", "a\nb\n", -1, "a\nb\n"},
		{"none", "a\nb\n", 0, ""},
		{"one", "a\nb\n", 1, "b\n"},
		{"one without an end", "a\nb", 1, "b"},
		{"two of three", "a\nb\nc\n", 2, "b\nc\n"},
		{"more than there are", "a\nb\n", 3, "a\nb\n"},
		{"empty lines", "a\n\n\n", 2, "\n\n"},
		{"empty", "", 5, ""},
		{"over blocks", "a\n" + long + "\nb\n", 2, long + "\nb\n"},
		{"a line of a block", "a\n" + long[:tailBlock-1] + "\n", 1, long[:tailBlock-1] + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(tt.log), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := copyLog(t.Context(), &out, path, tt.tail, false); err != nil || out.String() != tt.want {
				t.Errorf("%v, %d bytes %.20q, want %.20q", err, out.Len(), out.String(), tt.want)
			}
		})
	}
}
