package procstat

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	const rest = " 1 12 11 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 1765 2920448 200"
	want := Stat{Session: 11, CPU: 100 * time.Millisecond, Start: 1765}
	for _, c := range []struct {
		name, text string
		state      byte // 0: invalid
	}{
		{"plain name", "12 (sh) S" + rest, 'S'},
		{"zombie", "12 (sh) Z" + rest, Zombie},
		{"parentheses and spaces in the name", "12 (a) Z 1 (b c) S" + rest, 'S'},
		{"name of a whole line", "12 (x) Z 1 1 1\n) R" + rest, 'R'},
		{"empty name", "12 () S" + rest, 'S'},
		{"cut off", "12 (sh) S 1 12", 0},
		{"only a name", "12 (sh)", 0},
		{"state too long", "12 (sh) SS" + rest, 0},
		{"start is no number", "12 (sh) S 1 12 11 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 x 2920448 200", 0},
		{"empty", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := want
			if want.State = c.state; c.state == 0 {
				want = Stat{}
			}
			if got, ok := Parse([]byte(c.text)); ok != (c.state != 0) || ok && got != want {
				t.Errorf("Parse(%q) = %+v, %v; want %+v", c.text, got, ok, want)
			}
		})
	}
}

// TestRead reads the file of a process whose name looks like the end of the name and a state.
func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a) Z (b c")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(path, "60")
	c.Args[0] = "sleep" // for busybox
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	own, err := Read("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read("/proc/" + strconv.Itoa(c.Process.Pid))
	if err != nil || got.State == Zombie || got.Session != own.Session || got.Start < own.Start {
		t.Errorf("%+v, %v; this process: %+v", got, err, own)
	}
	if _, err := Read("/proc/none"); !os.IsNotExist(err) {
		t.Errorf("of a process that has ended: %v", err)
	}
}
