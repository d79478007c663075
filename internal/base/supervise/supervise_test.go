package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"
)

func start(command *exec.Cmd) error { return command.Start() }

var quick = Options{MinPause: time.Millisecond, MaxPause: 8 * time.Millisecond, Grace: 100 * time.Millisecond}

// shell returns a process that runs script, with its files in dir.
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

// await waits for a condition. what is the error if it does not hold in time.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	eventually.Succeeds(t, time.Minute, func() error {
		if !condition() {
			return errors.New(what)
		}
		return nil
	})
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
	await(t, "the first run's line", logged("line\n"))
	if err := syscall.Kill(first.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "a restart", func() bool { return s.State().Restarts == 1 && s.State().Pid != 0 })
	second := s.State()
	if second.Pid == first.Pid || second.LastExit != "signal: killed" || second.Since.Before(first.Since) {
		t.Errorf("state after the restart is %+v; before it was %+v", second, first)
	}
	await(t, "both runs in one log", logged("line\nline\n"))
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
	await(t, "25 restarts, which doubling pauses would spread over nine hours", func() bool { return s.State().Restarts >= 25 })
	if exit := s.State().LastExit; exit != "exit status 3" {
		t.Errorf("last exit is %q", exit)
	}
}

func TestStop(t *testing.T) {
	tests := []struct {
		name, script string
		grace        time.Duration
		exit         string
	}{
		{"obeys", "echo ready; exec sleep 1000", time.Minute, "signal: terminated"},
		{"ignores SIGTERM", "trap '' TERM; echo ready; while :; do sleep 0.01; done", quick.Grace, "signal: killed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			options := quick
			options.Grace = test.grace
			s := run(t, shell(dir, test.script), options)
			pid := s.State().Pid
			await(t, "the script's start", func() bool {
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
	await(t, "the end", func() bool { return s.State().Pid == 0 })
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
	await(t, "a restart", func() bool { return s.State().Restarts == 1 && s.State().Pid != 0 })
	if state := s.State(); state.Adopted || state.Pid == before.Pid {
		t.Errorf("state after the restart is %+v", state)
	}
}

const helperScript = "exec sleep 1000"

// TestHelperSupervisor tests nothing: it runs the supervisor that TestAdoptAfterKill kills.
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
	await(t, "the process's end", func() bool { return !alive(pid) })
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
		await(t, "restarts", func() bool { return s.State().Restarts > 20 })
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

// TestTrimLog: a log that is too long is set aside while a process writes to it, whose next line is the first of the new one. A link is
// not followed to what others made of it, nor is a log made.
func TestTrimLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	write := func(text string) {
		t.Helper()
		if _, err := log.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		text, _ := os.ReadFile(name)
		return string(text)
	}
	write(strings.Repeat("x", MaxLog))
	if err := trimLog(path); err != nil || len(read(path)) != MaxLog {
		t.Errorf("a log of the right size: %v, %d bytes", err, len(read(path)))
	}
	write("last\n")
	if err := trimLog(path); err != nil {
		t.Fatal(err)
	}
	write("next\n")
	if aside := read(path + ".1"); len(aside) != MaxLog || !strings.HasSuffix(aside, "xlast\n") || read(path) != "next\n" {
		t.Errorf("set aside %d bytes; the log is %.50q", len(aside), read(path))
	}
	if err := trimLog(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Error(err)
	}
}

// TestTrimLogFails: a log is bounded also where nothing can be set aside, and says so.
func TestTrimLogFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.MkdirAll(filepath.Join(Aside(path), "in-the-way"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path, make([]byte, MaxLog+1), 0o600), trimLog(path)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(text), "packetwalk: the log up to here is lost: ") || strings.Count(string(text), "\n") != 1 {
		t.Errorf("%.100q, %v", text, err)
	}
}

// TestTrimLogAside: a reader of the file that was set aside is not disturbed by the next one, and a link with its name is not followed.
func TestTrimLogAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	fill := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(strings.Repeat(text, MaxLog+1)), 0o600), trimLog(path)); err != nil {
			t.Fatal(err)
		}
	}
	fill("1")
	aside, err := os.Open(Aside(path))
	if err != nil {
		t.Fatal(err)
	}
	defer aside.Close()
	fill("2")
	if text, err := io.ReadAll(aside); err != nil || string(text) != strings.Repeat("1", MaxLog) {
		t.Errorf("%.20q: %v", text, err)
	}
	other := path + ".other"
	if err := errors.Join(os.WriteFile(other, []byte("kept"), 0o600), os.Remove(Aside(path)), os.Symlink(other, Aside(path))); err != nil {
		t.Fatal(err)
	}
	fill("3")
	if text, _ := os.ReadFile(other); string(text) != "kept" {
		t.Errorf("a link was followed: %.20q", text)
	}
	if err := errors.Join(RemoveLog(path), RemoveLog(path)); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(path + "*"); !slices.Equal(left, []string{other}) {
		t.Errorf("%q are left", left)
	}
}

// TestLastLinesAside: what a process said last is known, too, when its log was just set aside.
func TestLastLinesAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	text := strings.Repeat("x\n", MaxLog/2+1) + "why\n"
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), trimLog(path)); err != nil {
		t.Fatal(err)
	}
	if got := LastLines(path); !strings.HasSuffix(got, "\n  x\n  why") {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(path, []byte("then\nit ended\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := LastLines(path), "\n  x\n  x\n  why\n  then\n  it ended"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestBoundedWhileRunning: a process that writes much has a log of a bounded size.
func TestBoundedWhileRunning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	args := []string{"-c", "head -c 20000000 /dev/zero; echo end; exec sleep 100"}
	s, err := Run(Process{Name: "loud", Path: "/bin/sh", Args: args, LogFile: path}, (*exec.Cmd).Start, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Stop() }()
	eventually.Succeeds(t, max(time.Minute, 3*logPause), func() error {
		now, err := os.Stat(path)
		aside, err2 := os.Stat(path + ".1")
		if err != nil || err2 != nil || now.Size() >= MaxLog || aside.Size() != MaxLog {
			return fmt.Errorf("%v, %v: %w", now, aside, errors.Join(err, err2))
		}
		return nil
	})
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
