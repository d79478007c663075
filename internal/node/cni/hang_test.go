package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/internal/testing/kerneltest"
)

// slowly runs the plugin where ebtables does not come to its end, and returns when it is there.
func (w *world) slowly(c call) (cmd *exec.Cmd, out *bytes.Buffer) {
	w.t.Helper()
	dir := w.t.TempDir()
	there := filepath.Join(dir, "there")
	slow := filepath.Join(dir, "slow")
	kerneltest.WriteProgram(w.t, slow, []byte("#!/bin/sh\necho > "+there+"\nexec /bin/sleep 1000\n"))
	program, err := findProgram("ebtables-nft-restore", "ebtables-restore")
	if err != nil {
		w.t.Fatal(err)
	}
	cmd, out = w.command(c), &bytes.Buffer{}
	plugin := cmd.Path
	cmd.Path = "/bin/sh"
	cmd.Args = []string{"sh", "-c", fmt.Sprintf(`PATH=/bin:/usr/bin; mount --bind %s %s && exec %s`, slow, program, plugin)}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	w.inNode(func() { err = cmd.Start() })
	if err != nil {
		w.t.Fatal(err)
	}
	eventually.Succeeds(w.t, time.Minute, func() error {
		if _, err := os.Stat(there); err != nil {
			return fmt.Errorf("ebtables is not run: %s", out)
		}
		return nil
	})
	return cmd, out
}

// TestHungADD: while one ADD hangs, in a program or because it stands still, others and DEL go on; it ends with an error when the program
// has had its time, and DEL of what was killed works.
func TestHungADD(t *testing.T) {
	w := newWorld(t, modeBridge)
	first := w.add("p1") // the node's part is there
	w.pod("hung")
	w.pod("stopped")
	// The others have to be through before it has had its time, on a busy machine too.
	hung, said := w.slowly(call{command: "ADD", pod: "hung", env: map[string]string{limitVariable: "30s"}})
	stopped, _ := w.slowly(call{command: "ADD", pod: "stopped"})
	if err := stopped.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	second := w.add("p2")
	if second == first {
		t.Errorf("%s twice", first)
	}
	w.ping("p1", second, 64)
	w.must(call{command: "DEL", pod: "p1"})
	for _, pod := range []string{"p1", "p2"} { // p1 again
		if pod == "p1" {
			w.add(pod)
		}
		w.must(call{command: "DEL", pod: pod})
	}
	w.must(call{command: "STATUS", pod: "p1"})
	if strings.Count(w.dump(), " true}") != 2 {
		t.Errorf("the two that hang are not under way: %s", w.dump())
	}

	err := hung.Wait()
	var object cniErr
	if jsonErr := json.Unmarshal(said.Bytes(), &object); err == nil || jsonErr != nil || !strings.Contains(object.Msg, "did not end within") {
		t.Errorf("the hung one: %v, %s", err, said)
	}
	if err := stopped.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = stopped.Wait()
	for _, pod := range []string{"hung", "stopped"} {
		w.must(call{command: "DEL", pod: pod})
	}
	if got := w.dump(); !strings.HasSuffix(got, "== state: []\n") || strings.Contains(got, "azv") {
		t.Errorf("left over: %s", got)
	}
}
