package conflict

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

const (
	role      = "PACKETWALK_TEST_ROLE"
	roleSleep = "sleep" // a process that does nothing
	roleTake  = "take"  // one that has a part, and says so
	roleBind  = "bind"  // one that has many names of the record
	roleFlick = "flick" // one that has it now and then
	roleWorld = "world" // the test itself, in a network namespace of its own
)

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case roleSleep:
		time.Sleep(time.Hour)
	case roleTake:
		fmt.Println(Take("service-proxy"))
		time.Sleep(time.Hour)
	}
	if os.Getenv(role) == roleBind {
		fmt.Println(bindMany(os.Args[1]))
		time.Sleep(time.Hour)
	}
	for os.Getenv(role) == roleFlick {
		if l, err := net.Listen("unix", recordName+"service-proxy"); err == nil {
			time.Sleep(50 * time.Microsecond)
			_ = l.Close()
		}
	}
	os.Exit(m.Run())
}

// impostorNames is how many names an impostor takes.
const impostorNames = 200

// bindMany takes names of the record, and listens at them or not; those that are full have no room for one more client.
func bindMany(how string) error {
	for n := range impostorNames {
		at := &unix.SockaddrUnix{Name: recordName + "service-proxy"}
		if n > 0 {
			at.Name += fmt.Sprint("#", n)
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err := errors.Join(err, unix.Bind(fd, at)); err != nil {
			return err
		}
		if how == "bind" {
			continue
		}
		if err := unix.Listen(fd, 0); err != nil {
			return err
		}
		for how == "full" {
			client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			if err := unix.Connect(client, at); errors.Is(err, unix.EAGAIN) {
				break
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// inWorld runs the test again in a network namespace of its own, and reports whether this is there.
func inWorld(t *testing.T) bool {
	kerneltest.NeedRoot(t)
	if os.Getenv(role) == roleWorld {
		lo, err := netlink.LinkByName("lo")
		if err := errors.Join(err, netlink.LinkSetUp(lo)); err != nil {
			t.Fatal(err)
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), role+"="+roleWorld)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	return false
}

// start starts this program under another name and in another role, and gives what ends it, and what takes its status.
func start(t *testing.T, r string, attr syscall.SysProcAttr, path string, args ...string) *exec.Cmd {
	t.Helper()
	attr.Pdeathsig = syscall.SIGKILL
	cmd := &exec.Cmd{Path: path, Args: append([]string{path}, args...), Env: append(os.Environ(), role+"="+r), SysProcAttr: &attr}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func look(t *testing.T) []string {
	t.Helper()
	found, err := ServiceProxies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestProcesses: kube-proxy counts by its name or its command line, where it is root's, alive, and in this network namespace.
func TestProcesses(t *testing.T) {
	if !inWorld(t) {
		return
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil { //nolint:gosec // for another user
		t.Fatal(err)
	}
	program := copyOf(t, dir, "kube-proxy")
	for _, attr := range []syscall.SysProcAttr{
		{Cloneflags: syscall.CLONE_NEWNET}, {Credential: &syscall.Credential{Uid: 65534, Gid: 65534}},
	} {
		start(t, roleSleep, attr, program)
	}
	if found := look(t); found != nil {
		t.Errorf("another namespace's, or another user's: %q", found)
	}
	cmd := start(t, roleSleep, syscall.SysProcAttr{}, program)
	if found, want := look(t), []string{fmt.Sprintf("kube-proxy (pid %d)", cmd.Process.Pid)}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); look(t) != nil; time.Sleep(10 * time.Millisecond) { // nobody has taken its status: a zombie
		if time.Now().After(end) {
			t.Fatalf("a zombie counts: %q", look(t))
		}
	}
	for argument, want := range map[string]int{"kubelet": 0, "proxy": 1, "kube-proxy": 1} {
		hyper := start(t, roleSleep, syscall.SysProcAttr{}, copyOf(t, dir, "hyperkube"), argument)
		if found := look(t); len(found) != want {
			t.Errorf("hyperkube %s: %q", argument, found)
		}
		_ = hyper.Process.Kill()
		_ = hyper.Wait()
	}
}

// copyOf is this program under another name.
func copyOf(t *testing.T, dir, name string) string {
	t.Helper()
	program := filepath.Join(dir, name)
	if _, err := os.Stat(program); err == nil {
		return program
	}
	text, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, os.WriteFile(program, text, 0o755)); err != nil { //nolint:gosec // a program for all
		t.Fatal(err)
	}
	return program
}

// TestPorts: who listens on kube-proxy's ports counts, but this process, another user, and who says that it is no service proxy, or waits.
func TestPorts(t *testing.T) {
	if !inWorld(t) {
		return
	}
	serve := func(t *testing.T, address string, handler http.HandlerFunc) {
		t.Helper()
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { s.Close() })
	}
	answer := func(status int, v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	mode := answer(http.StatusOK, "iptables")
	for _, c := range []struct {
		name, address string
		handler       http.HandlerFunc
		counts        bool
	}{
		{"kube-proxy's health", "0.0.0.0:10256", answer(http.StatusNotFound, ""), true},
		{"on one address", "127.0.0.5:10256", answer(http.StatusNotFound, ""), true},
		{"packetwalk-node", "[::]:10256", answer(http.StatusOK, Ready{Ready: true}), true},
		{"one that waits", "[::1]:10256", answer(http.StatusServiceUnavailable, Ready{Waiting: []string{"another"}}), false},
		{"kube-proxy's metrics", "127.0.0.1:10249", mode, true},
		{"metrics of no service proxy", "127.0.0.1:10249", answer(http.StatusNotFound, ""), false},
		{"another port", "127.0.0.1:10250", mode, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			serve(t, c.address, c.handler)
			found, err := ports(t.Context(), "/proc/self")
			if err != nil || found != nil {
				t.Errorf("this process's own: %q, %v", found, err)
			}
			// As another process with the same sockets in its network namespace sees them.
			other := start(t, roleSleep, syscall.SysProcAttr{}, os.Args[0])
			found, err = ports(t.Context(), fmt.Sprintf("/proc/%d", other.Process.Pid))
			if err != nil || (len(found) == 1) != c.counts || len(found) > 1 {
				t.Errorf("%q, %v", found, err)
			}
		})
	}
	t.Run("one that does not answer", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:10249")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		other := start(t, roleSleep, syscall.SysProcAttr{}, os.Args[0])
		if found, err := ports(t.Context(), fmt.Sprintf("/proc/%d", other.Process.Pid)); err != nil || len(found) != 1 {
			t.Errorf("%q, %v", found, err)
		}
	})
}

// TestListeners reads lines as the kernel prints them, and whatever else.
func TestListeners(t *testing.T) {
	const text = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 18312 1 0000000000000000 100 0 0 10 0
   1: 00000000:2810 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 77 1 0000000000000000 100 0 0 10 0
   2: 0100007F:2809 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 5 1 0000000000000000 20 4 30 10 -1
   3: 0000000000000000FFFF00000100007F:2810 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9 1
   4: zz:2810 0:0 0A 0 0 0 0 0 9 1
   5: 01:2810 0:0 0A 0 0 0 0 0 9 1
`
	var got []string
	for _, l := range listeners(text) {
		got = append(got, fmt.Sprint(l.at, " ", l.uid, " ", l.inode))
	}
	if want := []string{"127.0.0.1:10249 0 18312", "0.0.0.0:10256 1000 77", "127.0.0.1:10256 0 9"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTake: a part is one process's in a network namespace, until that process is gone, however it ends.
func TestTake(t *testing.T) {
	if !inWorld(t) {
		return
	}
	run := func(attr syscall.SysProcAttr) (*exec.Cmd, string) {
		attr.Pdeathsig = syscall.SIGKILL
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.SysProcAttr = append(os.Environ(), role+"="+roleTake), &attr
		out, err := cmd.StdoutPipe()
		if err := errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		line := make([]byte, 200)
		n, _ := out.Read(line)
		return cmd, string(line[:n])
	}
	first, said := run(syscall.SysProcAttr{})
	if said != "<nil>\n" {
		t.Fatalf("the first: %s", said)
	}
	if err := Take("service-proxy"); !errors.Is(err, ErrTaken) {
		t.Errorf("the second: %v", err)
	}
	if err := Take("ip-masq-agent"); err != nil {
		t.Errorf("another part: %v", err)
	}
	if _, said := run(syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}); said != "<nil>\n" {
		t.Errorf("in another namespace: %s", said)
	}
	if _, said := run(syscall.SysProcAttr{}); !strings.Contains(said, "another packetwalk-node") {
		t.Errorf("another process: %s", said)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	if err := Take("service-proxy"); err != nil {
		t.Errorf("after the first was killed: %v", err)
	}
}

// TestImpostor: a user other than root that takes many names of the record does not keep root from a part, whether it answers or not. Only
// one of two of root's processes gets it.
func TestImpostor(t *testing.T) {
	if !inWorld(t) {
		return
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil { //nolint:gosec // for another user
		t.Fatal(err)
	}
	program := copyOf(t, dir, "impostor")
	for _, how := range []string{"listen", "bind", "full"} {
		cmd := exec.Command(program, how)
		cmd.Env = append(os.Environ(), role+"="+roleBind)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.StdoutPipe()
		if err := errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 100)
		n, _ := out.Read(line)
		if said := string(line[:n]); said != "<nil>\n" {
			t.Fatalf("the impostor cannot %s: %s", how, said)
		}
		holder := exec.Command(os.Args[0])
		holder.Env, holder.SysProcAttr = append(os.Environ(), role+"="+roleTake), &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err = holder.StdoutPipe()
		if err := errors.Join(err, holder.Start()); err != nil {
			t.Fatal(err)
		}
		if n, _ = out.Read(line); string(line[:n]) != "<nil>\n" {
			t.Errorf("%s: root does not get the part: %s", how, line[:n])
		}
		if err := Take("service-proxy"); !errors.Is(err, ErrTaken) {
			t.Errorf("%s: a second of root's: %v", how, err)
		}
		for _, c := range []*exec.Cmd{cmd, holder} {
			_ = c.Process.Kill()
			_ = c.Wait()
			if c == holder {
				break
			}
			if err := Take("service-proxy"); !errors.Is(err, ErrTaken) {
				t.Errorf("%s: a second of root's, with the impostor gone: %v", how, err)
			}
		}
	}
}

// TestTakeAtOnce: of several that try at once one at most gets the part, also while another user takes the first name and gives it back.
func TestTakeAtOnce(t *testing.T) {
	if !inWorld(t) {
		return
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil { //nolint:gosec // for another user
		t.Fatal(err)
	}
	start(t, roleFlick, syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, copyOf(t, dir, "impostor"))
	const tries = 4
	rounds, taken := 0, 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); rounds++ {
		var all sync.WaitGroup
		var got [tries]net.Listener
		var errs [tries]error
		for i := range tries {
			all.Go(func() { got[i], errs[i] = take("service-proxy") })
		}
		all.Wait()
		have := 0
		for i, l := range got {
			if errs[i] == nil {
				have++
				_ = l.Close()
			} else if !errors.Is(errs[i], ErrTaken) {
				t.Fatal(errs[i])
			}
		}
		if taken += have; have > 1 {
			t.Fatalf("round %d: %d have it", rounds, have)
		}
	}
	if taken == 0 {
		t.Errorf("no process got it in %d rounds", rounds)
	}
}

func FuzzListeners(f *testing.F) {
	f.Add("   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 18312 1")
	f.Fuzz(func(t *testing.T, text string) {
		for _, l := range listeners(text) {
			if l.at.Port() != metricsPort && l.at.Port() != healthzPort || !l.at.Addr().IsValid() {
				t.Errorf("%+v of %q", l, text)
			}
		}
	})
}
