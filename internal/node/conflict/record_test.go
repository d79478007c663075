package conflict

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

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
			all.Go(func() { got[i], errs[i] = listen("service-proxy") })
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
