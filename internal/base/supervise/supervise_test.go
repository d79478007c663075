package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func start(command *exec.Cmd) error { return command.Start() }

var quick = Options{MinPause: time.Millisecond, MaxPause: 8 * time.Millisecond, Grace: 100 * time.Millisecond}

// shell is a process that runs script, with its files in dir.
func shell(dir, script string) Process {
	return Process{Name: "test", Path: "/bin/sh", Args: []string{"-c", script}, LogFile: filepath.Join(dir, "log"),
		PidFile: filepath.Join(dir, "pid")}
}

// run supervises until the test's end.
func run(t *testing.T, process Process, options Options) *Supervisor {
	t.Helper()
	s, err := Run(process, start, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// eventually waits for a condition; a test that waits in vain is ended by go test's own limit with a message from here first.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestRestart(t *testing.T) {
	dir := t.TempDir()
	s := run(t, shell(dir, "echo line; exec sleep 1000"), quick)
	first := s.State()
	if first.Pid == 0 || first.Restarts != 0 || first.Adopted {
		t.Fatalf("state after the start is %+v", first)
	}
	logged := func(want string) func() bool {
		return func() bool {
			log, err := os.ReadFile(filepath.Join(dir, "log"))
			return err == nil && string(log) == want
		}
	}
	eventually(t, "the first run's line", logged("line\n"))
	if err := syscall.Kill(first.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a restart", func() bool { return s.State().Restarts == 1 && s.State().Pid != 0 })
	second := s.State()
	if second.Pid == first.Pid || second.LastExit != "signal: killed" || second.Since.Before(first.Since) {
		t.Errorf("state after the restart is %+v; before it was %+v", second, first)
	}
	eventually(t, "both runs in one log", logged("line\nline\n"))
}

// A process that dies at once is restarted after pauses that double up to the longest.
func TestPausesGrow(t *testing.T) {
	dir := t.TempDir()
	options := quick
	var gaps []time.Duration
	var last time.Time
	enough := make(chan struct{})
	options.OnChange = func(state State) {
		switch {
		case len(gaps) == 5:
		case state.Pid == 0:
			last = time.Now()
		case !last.IsZero():
			if gaps = append(gaps, time.Since(last)); len(gaps) == 5 {
				close(enough)
			}
		}
	}
	run(t, shell(dir, "exit 3"), options)
	<-enough
	for i, least := range []time.Duration{1, 2, 4, 8, 8} {
		if gaps[i] < least*time.Millisecond {
			t.Errorf("pause %d is %s, want at least %d ms", i, gaps[i], least)
		}
	}
}

// A process that ran long enough starts again after the shortest pause. With Steady at a nanosecond every run is long enough, so no pause
// reaches the hour.
func TestPauseResets(t *testing.T) {
	options := Options{MinPause: time.Millisecond, MaxPause: time.Hour, Steady: 1}
	s := run(t, shell(t.TempDir(), "exit 3"), options)
	eventually(t, "25 restarts, which doubling pauses would spread over nine hours", func() bool { return s.State().Restarts >= 25 })
	if exit := s.State().LastExit; exit != "exit status 3" {
		t.Errorf("last exit is %q", exit)
	}
}

func TestStop(t *testing.T) {
	tests := []struct{ name, script, exit string }{
		{"obeys", "echo ready; exec sleep 1000", "signal: terminated"},
		{"ignores SIGTERM", "trap '' TERM; echo ready; while :; do sleep 0.01; done", "signal: killed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			s := run(t, shell(dir, test.script), quick)
			pid := s.State().Pid
			eventually(t, "the script's start", func() bool {
				log, err := os.ReadFile(filepath.Join(dir, "log"))
				return err == nil && len(log) > 0
			})
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			if alive(pid) {
				t.Errorf("pid %d is alive after Stop", pid)
			}
			if state := s.State(); state.Pid != 0 || state.LastExit != test.exit || state.Restarts != 0 {
				t.Errorf("state after Stop is %+v, want exit %q", state, test.exit)
			}
			if _, err := os.Stat(filepath.Join(dir, "pid")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the pid file is still there: %v", err)
			}
		})
	}
}

func TestStopDuringPause(t *testing.T) {
	s := run(t, shell(t.TempDir(), "exit 0"), Options{MinPause: time.Hour, MaxPause: time.Hour})
	eventually(t, "the end", func() bool { return s.State().Pid == 0 })
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if state := s.State(); state.LastExit != "exit status 0" || state.Restarts != 0 {
		t.Errorf("state is %+v", state)
	}
}

func TestCannotStart(t *testing.T) {
	process := shell(t.TempDir(), "")
	process.Path = "/nonexistent/program"
	if _, err := Run(process, start, quick); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "start test") {
		t.Errorf("error is %v", err)
	}
}

// A supervisor that is killed outright leaves its process; the next one adopts it, sees its death and restarts it.
func TestAdoptAfterKill(t *testing.T) {
	dir := t.TempDir()
	other := exec.Command(os.Args[0], "-test.run=^TestHelperSupervisor$")
	other.Env = append(os.Environ(), "SUPERVISE_HELPER="+dir)
	output, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	var before State
	err = json.NewDecoder(output).Decode(&before)
	if killed := other.Process.Kill(); killed != nil || err != nil {
		t.Fatal(killed, err)
	}
	if err := other.Wait(); err == nil {
		t.Fatal("the other supervisor ended by itself")
	}

	s := run(t, shell(dir, helperScript), quick)
	after := s.State()
	if after.Pid != before.Pid || !after.Adopted || after.Restarts != 0 {
		t.Fatalf("state is %+v; the earlier supervisor's was %+v", after, before)
	}
	if age := before.Since.Sub(after.Since); age < -time.Second || age > time.Second {
		t.Errorf("adopted process runs since %s, was started at %s", after.Since, before.Since)
	}
	if err := syscall.Kill(before.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a restart", func() bool { return s.State().Restarts == 1 && s.State().Pid != 0 })
	if state := s.State(); state.Adopted || state.Pid == before.Pid {
		t.Errorf("state after the restart is %+v", state)
	}
}

const helperScript = "exec sleep 1000"

// TestHelperSupervisor is not a test: it is the supervisor that TestAdoptAfterKill kills.
func TestHelperSupervisor(t *testing.T) {
	dir := os.Getenv("SUPERVISE_HELPER")
	if dir == "" {
		t.Skip("runs in a process of its own")
	}
	s, err := Run(shell(dir, helperScript), start, quick)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(s.State()); err != nil {
		t.Fatal(err)
	}
	select {}
}

// A process that one supervisor was detached from ends with the next one.
func TestDetachThenStop(t *testing.T) {
	dir := t.TempDir()
	s := run(t, shell(dir, helperScript), quick)
	pid := s.State().Pid
	s.Detach()
	if !alive(pid) {
		t.Fatal("the process ended with the supervision")
	}
	s = run(t, shell(dir, helperScript), quick)
	if state := s.State(); !state.Adopted || state.Pid != pid {
		t.Fatalf("state is %+v, want the process %d adopted", state, pid)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process's end", func() bool { return !alive(pid) })
	if _, err := os.Stat(filepath.Join(dir, "pid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pid file is still there: %v", err)
	}
}

// A pid file whose number belongs to another process now is not adopted, and that process is left alone.
func TestForeignPid(t *testing.T) {
	dir := t.TempDir()
	text := fmt.Sprintf("%d %d\n", os.Getpid(), 1)
	if err := os.WriteFile(filepath.Join(dir, "pid"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := run(t, shell(dir, helperScript), quick)
	if state := s.State(); state.Adopted || state.Pid == os.Getpid() {
		t.Errorf("state is %+v", state)
	}
}

func TestBadPidFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pid"), []byte("abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(shell(dir, helperScript), start, quick); err == nil || !strings.Contains(err.Error(), "not a pid and a start time") {
		t.Errorf("error is %v", err)
	}
}

// No supervisor may leave file descriptors behind, however often its process dies.
func TestNoDescriptorLeak(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	once := func() {
		s := run(t, shell(t.TempDir(), "exit 0"), Options{MinPause: time.Microsecond, MaxPause: time.Microsecond})
		eventually(t, "restarts", func() bool { return s.State().Restarts > 20 })
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	once() // whatever the runtime opens once
	before := count()
	once()
	if after := count(); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestLogSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), maxLog+1), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	log.Close()
	for name, size := range map[string]int64{path: 0, path + ".1": maxLog + 1} {
		if info, err := os.Stat(name); err != nil || info.Size() != size {
			t.Errorf("%s: %v, %v; want %d bytes", name, info, err, size)
		}
	}
}

func TestParseStat(t *testing.T) {
	tests := []struct {
		text string
		want stat
		ok   bool
	}{
		{"12 (sh) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 1765 2920448 200", stat{'S', 1765}, true},
		{"12 (a) b) Z 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 99 0 0", stat{'Z', 99}, true},
		{"12 (sh) S 1 12", stat{}, false},
		{"", stat{}, false},
	}
	for _, test := range tests {
		if got, ok := parseStat([]byte(test.text)); got != test.want || ok != test.ok {
			t.Errorf("parseStat(%q) = %v, %v; want %v, %v", test.text, got, ok, test.want, test.ok)
		}
	}
}

func FuzzParsePid(f *testing.F) {
	f.Add("12 345\n")
	f.Add("-1 0")
	f.Fuzz(func(t *testing.T, text string) {
		if pid, _, ok := parsePid(text); ok && pid <= 0 {
			t.Errorf("parsePid(%q) accepts pid %d, which kill(2) takes for a group", text, pid)
		}
	})
}
