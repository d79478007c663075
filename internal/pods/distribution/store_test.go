package distribution

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// makerEnv makes this test's binary a process that makes a layer: of a machine, in a directory.
const makerEnv = "PACKETWALK_TEST_MAKER"

func TestMain(m *testing.M) {
	if root, dir, ok := strings.Cut(os.Getenv(makerEnv), ":"); ok {
		layer, _, err := (&Store{Dir: dir, Machine: root}).Layer(context.Background())
		var st syscall.Stat_t
		if err == nil {
			err = syscall.Stat(layer, &st)
		}
		fmt.Println(layer, st.Ino, err)
		return
	}
	os.Exit(m.Run())
}

// big is a machine whose layer takes a while.
func big(t *testing.T) *machine {
	kerneltest.NeedRoot(t)
	m := newMachine(t, false)
	files := map[string]string{}
	for n := range 400 {
		files[fmt.Sprintf("/usr/share/less/%d", n)] = strings.Repeat(fmt.Sprint(n), 20000)
	}
	m.pack("less", files, "")
	return m
}

func (m *machine) maker(dir string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), makerEnv+"="+m.root+":"+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

// TestSeveralProcesses: one makes the layer, all have it.
func TestSeveralProcesses(t *testing.T) {
	m := big(t)
	dir := filepath.Join(t.TempDir(), "new/cache")
	var said []*bufio.Reader
	for range 4 {
		cmd := m.maker(dir)
		out, err := cmd.StdoutPipe()
		m.check(err)
		m.check(cmd.Start())
		t.Cleanup(func() { cmd.Wait() })
		said = append(said, bufio.NewReader(out))
	}
	first := ""
	for _, r := range said {
		line, _ := r.ReadString('\n')
		if first == "" {
			first = line
		}
		if line != first || !strings.HasSuffix(line, " <nil>\n") {
			t.Errorf("one has %q, another %q", first, line)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("more than a layer and a lock: %v, %v", entries, err)
	}
}

// TestKilled: of a process that was killed while it made a layer nothing is taken for one, and the next clears it away.
func TestKilled(t *testing.T) {
	m := big(t)
	dir := t.TempDir()
	left := func() bool {
		found, err := filepath.Glob(dir + "/" + unfinished + "*")
		m.check(err)
		return len(found) > 0
	}
	for !left() {
		m.check(os.RemoveAll(dir))
		cmd := m.maker(dir)
		m.check(cmd.Start())
		for !left() && t.Context().Err() == nil {
			if done, err := filepath.Glob(dir + "/debian-*"); err != nil || len(done) > 0 {
				break // it was faster than we
			}
		}
		m.check(cmd.Process.Kill())
		cmd.Wait()
	}
	s := &Store{Dir: dir, Machine: m.root}
	layer, _, err := s.Layer(t.Context())
	m.check(err)
	if files, _ := filepath.Glob(layer + "/usr/share/less/*"); len(files) != 400 || left() {
		t.Errorf("%d files of 400; left: %v", len(files), left())
	}
}

// TestStore: a layer is made anew when the packages are others; an old one goes when nobody has had it for a day.
func TestStore(t *testing.T) {
	kerneltest.NeedRoot(t)
	m := newMachine(t, false)
	dir := t.TempDir()
	layer := func() string {
		t.Helper()
		got, err := (&Store{Dir: dir, Machine: m.root}).Root(t.Context())
		m.check(err)
		return got
	}
	upgrade := func(to string) {
		m.write("/var/lib/dpkg/status", strings.Replace(m.status.String(), "Version: 1\n", "Version: "+to+"\n", 1))
	}
	layers := []string{layer()}
	if again := layer(); again != layers[0] {
		t.Errorf("the same packages: %s and %s", layers[0], again)
	}
	for _, version := range []string{"2", "3"} {
		upgrade(version)
		layers = append(layers, layer())
	}
	// The first is mounted, the second is not, and the third was used today.
	m.mkdir("/usr/share")
	m.check(unix.Mount(layers[0], m.root+"/usr/share", "", unix.MS_BIND, ""))
	t.Cleanup(func() { unix.Unmount(m.root+"/usr/share", unix.MNT_DETACH) })
	for _, old := range layers[:2] {
		at := time.Now().Add(-2 * unused)
		m.check(os.Chtimes(filepath.Dir(old), at, at))
	}
	upgrade("4")
	layers = append(layers, layer())
	for i, want := range []bool{true, false, true, true} {
		if _, err := os.Stat(layers[i] + "/usr/bin/bash"); (err == nil) != want {
			t.Errorf("layer %d: %v", i, err)
		}
	}
	// One that was removed is made again, also by who has had it.
	s := &Store{Dir: dir, Machine: m.root}
	for range 2 {
		got, err := s.Root(t.Context())
		m.check(err)
		m.check(os.RemoveAll(filepath.Dir(got)))
	}
}

// TestHalfRemoved: an old layer of which something cannot be removed is not found any more under the name of a whole one.
func TestHalfRemoved(t *testing.T) {
	kerneltest.NeedRoot(t)
	m := newMachine(t, false)
	s := &Store{Dir: t.TempDir(), Machine: m.root}
	old, err := s.Root(t.Context())
	m.check(err)
	kept, err := os.Create(old + "/kept")
	m.check(err)
	const setFlags, immutable = 0x40086602, 0x10 // FS_IOC_SETFLAGS, FS_IMMUTABLE_FL (linux/fs.h)
	if err := unix.IoctlSetPointerInt(int(kept.Fd()), setFlags, immutable); err != nil {
		kerneltest.Missing(t, "immutable files: %v", err)
	}
	t.Cleanup(func() { m.check(errors.Join(unix.IoctlSetPointerInt(int(kept.Fd()), setFlags, 0), kept.Close())) })
	at := time.Now().Add(-2 * unused)
	m.check(os.Chtimes(filepath.Dir(old), at, at))
	m.write("/var/lib/dpkg/status", strings.Replace(m.status.String(), "Version: 1\n", "Version: 2\n", 1))
	_, err = (&Store{Dir: s.Dir, Machine: m.root}).Root(t.Context())
	m.check(err)
	if _, err := os.Lstat(filepath.Dir(old)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestNotOurs: a directory in which others may make files is not used.
func TestNotOurs(t *testing.T) {
	kerneltest.NeedRoot(t)
	m := newMachine(t, false)
	for name, open := range map[string]func(dir string) error{
		"of everybody": func(dir string) error { return os.Chmod(dir, 0o777) },
		"of another":   func(dir string) error { return os.Chown(dir, 1000, 0) },
	} {
		dir := t.TempDir()
		m.check(open(dir))
		if _, _, err := (&Store{Dir: dir, Machine: m.root}).Layer(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "is not this user's alone") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGivenUp: an end of the context ends the making and the waiting, and leaves nothing half made.
func TestGivenUp(t *testing.T) {
	m := big(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &Store{Dir: dir, Machine: m.root}
	ended := make(chan error, 1)
	go func() {
		_, err := s.Root(ctx)
		ended <- err
	}()
	for {
		found, err := filepath.Glob(dir + "/" + unfinished + "*")
		m.check(err)
		if len(found) > 0 {
			break
		}
	}
	cancel()
	err := <-ended
	if found, _ := filepath.Glob(dir + "/" + unfinished + "*"); len(found) > 0 {
		t.Errorf("left: %v (%v)", found, err)
	}
	own, err := openOwn(t.TempDir())
	m.check(err)
	defer own.Close()
	unlock, err := lock(t.Context(), own)
	m.check(err)
	defer unlock()
	if _, err := lock(ctx, own); err == nil || !strings.Contains(err.Error(), "another process makes it") {
		t.Error(err)
	}
}
