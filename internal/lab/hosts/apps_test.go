package hosts

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestAppLimits: a host's application is in a control group with limits, which goes with the host.
func TestAppLimits(t *testing.T) {
	kerneltest.NeedRoot(t)
	program, err := filepath.Abs("../../../bin/packetwalk-app")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		kerneltest.Missing(t, "%v; run make build", err)
	}
	d := layout.Dir(filepath.Join(t.TempDir(), fmt.Sprintf("apps-%d", os.Getpid())))
	if err := errors.Join(os.MkdirAll(d.Host("vm"), 0o755), os.MkdirAll(d.Logs(), 0o755)); err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Host: status.Host{Name: "vm", Kind: status.KindVM, App: "whereami"}, ns: ns}
	t.Cleanup(func() {
		if err := errors.Join(h.remove(), ns.Remove(), d.RemoveState()); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob("/sys/fs/cgroup/*/packetwalk/" + d.Name()); len(left) > 0 {
			t.Errorf("left: %s", left)
		}
	})
	l := apps{&lifecycle.Env{Dir: d, Binaries: layout.Binaries{App: program}, Log: slog.New(slog.DiscardHandler)}}
	if err := l.start(h); err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Of(h.app.Load().State().Pid)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, m := range group {
		if filepath.Base(m.Dir) != "vm.app" {
			continue
		}
		for file, want := range map[string]string{"memory.limit_in_bytes": "536870912", "memory.max": "536870912", "pids.max": "1024"} {
			if text, err := os.ReadFile(filepath.Join(m.Dir, file)); err == nil {
				found[file[:4]] = true
				if got := strings.TrimSpace(string(text)); got != want {
					t.Errorf("%s/%s: %s, want %s", m.Dir, file, got, want)
				}
			}
		}
	}
	if len(found) != 2 {
		t.Errorf("limits found: %v in %+v", found, group)
	}
}
