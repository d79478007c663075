package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/pods/cgroup"
)

func TestCapabilities(t *testing.T) {
	for _, tt := range []struct {
		spec Spec
		want CapSet
	}{
		{Spec{}, defaultCaps},
		{Spec{App: "ubuntu"}, defaultCaps | mustCaps("NET_ADMIN")},
		{Spec{AddCaps: []string{"NET_ADMIN"}}, appCaps},
		{Spec{DropCaps: []string{"net_raw"}}, defaultCaps &^ mustCaps("NET_RAW")},
		{Spec{AddCaps: []string{"CAP_IPC_LOCK", "sys_ptrace"}}, defaultCaps | mustCaps("IPC_LOCK")},
		{Spec{DropCaps: []string{"ALL"}}, 0},
		{Spec{DropCaps: []string{"ALL"}, AddCaps: []string{"NET_RAW"}}, mustCaps("NET_RAW")},
		{Spec{Privileged: true}, labCaps},
		{Spec{AddCaps: []string{"all"}, DropCaps: []string{"SYS_ADMIN", "NET_RAW"}}, labCaps &^ mustCaps("NET_RAW")},
	} {
		got, err := tt.spec.Capabilities()
		if err != nil || got != tt.want {
			t.Errorf("%+v: %v, %v; want %v", tt.spec, got, err, tt.want)
		}
	}
	if _, err := (&Spec{AddCaps: []string{"NET_RAW", "NOSUCH"}}).Capabilities(); !errors.Is(err, ErrStart) ||
		!strings.Contains(err.Error(), "NOSUCH;") {
		t.Error(err)
	}
	for _, name := range []string{"SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "SYS_TIME", "SYS_NICE", "SYS_RESOURCE", "SYS_PACCT",
		"SYSLOG", "BPF", "PERFMON",
		"MAC_ADMIN", "MAC_OVERRIDE", "DAC_READ_SEARCH", "MKNOD", "LINUX_IMMUTABLE", "AUDIT_CONTROL", "CHECKPOINT_RESTORE"} {
		for _, s := range []Spec{{AddCaps: []string{"CAP_" + name, "NET_ADMIN"}}, {AddCaps: []string{name}, Privileged: true}} {
			if _, err := s.Capabilities(); !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), "capability "+name+" would") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if labCaps&mustCaps(name) != 0 || labCaps&quietCaps != 0 {
			t.Errorf("privileged containers have %s", name)
		}
	}
}

func TestEnviron(t *testing.T) {
	s := Spec{Hostname: "box", Env: []string{"PATH=/x", "A=spec", "A=later"}, ImageEnv: []string{"A=image", "B=image"}}
	got := strings.Join(s.Environ(&Account{Home: "/root"}, []string{"B=extra"}, true), " ")
	if want := "PATH=/x HOME=/root HOSTNAME=box TERM=xterm A=later B=extra"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParseStat(t *testing.T) {
	const tail = " 1 2 2 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 5 0 98765 1 2 3"
	pid, ticks, err := parseStat("42 (a) Z (b) S" + tail)
	if pid != 42 || ticks != 98765 || err != nil {
		t.Error(pid, ticks, err)
	}
	if pid, again, err := parseStat("42 (x) Z" + tail); !errors.Is(err, errZombie) || pid != 42 || again != ticks {
		t.Error(err)
	}
	for _, bad := range []string{"", "42", "42 (x", ")(", "x (x) S" + tail, "42 (x) S 1 2"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestIdentifyEnded: a child that has ended, and that nobody has waited for, is still who it was.
func TestIdentifyEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, _, err := readStat(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid)); errors.Is(err, errZombie) {
			break
		} else if err != nil || time.Now().After(deadline) {
			t.Fatalf("it has not ended: %v", err)
		}
	}
	if i, err := Identify(cmd.Process.Pid); err != nil || i.Pid != cmd.Process.Pid || i.StartTicks == 0 || i.alive() {
		t.Errorf("%+v, %v", i, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("42 (a b) S 1 2 2 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 5 0 98765")
	f.Fuzz(func(t *testing.T, line string) {
		if pid, _, err := parseStat(line); err == nil && !strings.HasPrefix(strings.TrimLeft(line, " \t\n\v\f\r+0"), fmt.Sprint(pid)) && pid > 0 {
			t.Errorf("%q: pid %d", line, pid)
		}
	})
}

const testLog = `2026-01-02T03:04:05.000000001Z stdout F one
2026-01-02T03:04:06.000000001Z stderr F two
2026-01-02T03:04:07.000000001Z stdout P thr
2026-01-02T03:04:07.000000002Z stdout F ee
not an entry
2026-01-02T03:04:08.000000001Z stdout F 
2026-01-02T03:04:09.000000001Z stdout P no end`

// TestAdoptGivesUpAStart: nothing is left of a start that another process began and nobody saw the end of.
func TestAdoptGivesUpAStart(t *testing.T) {
	path, group := t.TempDir(), filepath.Join(t.TempDir(), "group")
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	err = errors.Join(os.Mkdir(group, 0o755), writeJSON(dir, SpecFile, Spec{Group: cgroup.Group{{Dir: group}}}),
		WriteState(dir, State{Shim: &Ident{Pid: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := new(Runtime).Adopt(path); !errors.Is(err, ErrNoContainer) {
		t.Error(err)
	}
	if _, err := os.Stat(group); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its control group: %v", err)
	}
}

func TestReadLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	if err := ReadLogs(context.Background(), path, logs.Options{}, nil, &bytes.Buffer{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte(testLog+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, rotated := range []string{"", "2026-01-01T00:00:00Z stdout F zero\n"} {
		zero := ""
		if rotated != "" {
			if err := os.WriteFile(path+RotatedSuffix, []byte(rotated), 0o600); err != nil {
				t.Fatal(err)
			}
			zero = "zero\n"
		}
		at, _ := time.Parse(time.RFC3339, "2026-01-02T03:04:07Z")
		for _, tt := range []struct {
			o    logs.Options
			want string
		}{
			{logs.Options{}, zero + "one\ntwo\nthree\n\nno end"},
			{logs.Options{Tail: new(0)}, ""},
			{logs.Options{Tail: new(1)}, "no end"},
			{logs.Options{Tail: new(3)}, "three\n\nno end"},
			{logs.Options{Tail: new(100)}, zero + "one\ntwo\nthree\n\nno end"},
			{logs.Options{Stream: "stderr"}, "two\n"},
			{logs.Options{Stream: "stdout", Tail: new(4)}, "one\nthree\n\nno end"},
			{logs.Options{Since: at}, "three\n\nno end"},
			{logs.Options{Since: at, Tail: new(2)}, "\nno end"},
			{logs.Options{LimitBytes: 2}, (zero + "one")[:2]},
			{logs.Options{Since: at, Timestamps: true, Tail: new(3)},
				"2026-01-02T03:04:07.000000001Z three\n2026-01-02T03:04:08.000000001Z \n2026-01-02T03:04:09.000000001Z no end"},
		} {
			var out bytes.Buffer
			if err := ReadLogs(context.Background(), path, tt.o, nil, &out); err != nil || out.String() != tt.want {
				t.Errorf("%+v: got %q, %v; want %q", tt.o, out.String(), err, tt.want)
			}
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A follower sees what comes before it, while it reads and across a rotation, and ends with the container.
func TestFollowLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	ended, done := make(chan struct{}), make(chan error, 1)
	var out lockedBuffer
	go func() {
		done <- ReadLogs(context.Background(), path, logs.Options{Follow: true}, ended, &out)
	}()
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	await := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); out.String() != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("got %q, want %q", out.String(), want)
			}
		}
	}
	const prefix = "2026-01-02T03:04:05Z stdout F "
	write(prefix + "one\n" + prefix + "tw")
	await("one\n")
	write("o\n" + prefix + "three\n")
	if err := os.Rename(path, path+RotatedSuffix); err != nil {
		t.Fatal(err)
	}
	write(prefix + "four\n")
	await("one\ntwo\nthree\nfour\n")
	write(prefix + "last\n")
	close(ended)
	if err := <-done; err != nil || out.String() != "one\ntwo\nthree\nfour\nlast\n" {
		t.Errorf("%v, %q", err, out.String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := ReadLogs(ctx, path, logs.Options{Follow: true}, nil, &out); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	for kind, payload := range []string{"stdin", "", strings.Repeat("x", 70000)} {
		if err := WriteFrame(&b, byte(kind), []byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	for kind, payload := range []string{"stdin", "", strings.Repeat("x", 70000)} {
		k, p, err := ReadFrame(&b)
		if err != nil || int(k) != kind || string(p) != payload {
			t.Error(k, len(p), err)
		}
	}
	if _, _, err := ReadFrame(strings.NewReader("\x00\xff\xff\xff\xff")); err == nil {
		t.Error("a frame of 4 GB is accepted")
	}
}

func TestLookPath(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(dir+"/run", nil, 0o755)
	os.WriteFile(dir+"/data", nil, 0o644)
	env := []string{"PATH=/nosuch:" + dir}
	for _, tt := range []struct{ name, want, err string }{
		{"run", dir + "/run", ""}, {"./run", dir + "/run", ""}, {dir + "/run", dir + "/run", ""},
		{"data", "", "permission denied"}, {"none", "", `exec: "none": executable file not found in $PATH`}, {"/none", "", "no such file"},
		{"", "", "no command specified"}, {dir + "/../" + filepath.Base(dir), "", "is a directory"},
	} {
		got, err := LookPath(tt.name, env, dir)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil &&
			(!errors.Is(err, ErrStart) || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%q: %q, %v", tt.name, got, err)
		}
	}
}

// slowly counts what is written to it, taking some time for each piece.
type slowly struct {
	pause time.Duration
	n     int
}

func (s *slowly) Write(p []byte) (int, error) {
	time.Sleep(s.pause)
	s.n += len(p)
	return len(p), nil
}

// TestExecLeavesWritersBehind: a command has ended when it has, whatever the processes that it left behind go on writing, and all that it
// wrote itself is there.
func TestExecLeavesWritersBehind(t *testing.T) {
	const own = "head -c 60000 /dev/zero; "
	for _, tt := range []struct {
		name, script string
		pause, limit time.Duration // a Write's, the context's
		least        int           // octets
	}{
		{"nobody", own, time.Millisecond, time.Minute, 60000},
		{"writers that never end", own + "for i in 1 2 3 4 5 6 7 8; do yes & done; sleep 0.1", time.Millisecond, time.Minute, 60000},
		{"a slow reader", own + "yes & sleep 0.1", 200 * time.Millisecond, 500 * time.Millisecond, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var x execution
			out, theirs, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			x.out = out
			cmd := exec.Command("sh", "-c", tt.script)
			cmd.Stdout, cmd.SysProcAttr = theirs, &syscall.SysProcAttr{Setpgid: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			x.proc = cmd.Process
			ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
			defer cancel()
			// The writers end by SIGPIPE when run closes our end.
			read := &slowly{pause: tt.pause}
			type result struct {
				code int
				err  error
			}
			ended := make(chan result, 1)
			go func() {
				code, err := x.run(ctx, Exec{Stdout: read})
				ended <- result{code, err}
			}()
			select {
			case got := <-ended:
				if got.code != 0 || got.err != nil || read.n < tt.least {
					t.Errorf("exit status %d, %v, %d octets", got.code, got.err, read.n)
				}
			case <-time.After(10 * time.Second):
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				t.Error("it goes on reading")
			}
		})
	}
}
