package lab

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/testing/containertest"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestUpNamesWhatDoesNotStart: with a control plane that crashes at its start, and with one that hangs, up ends, and says which component
// it is and what its log ends with; nothing is left behind.
func TestUpNamesWhatDoesNotStart(t *testing.T) {
	kerneltest.NeedRoot(t)
	bin := t.TempDir()
	app, err := containertest.Build(bin)
	if err != nil {
		t.Fatal(err)
	}
	dns, err := containertest.BuildProgram(bin, "packetwalk-dns")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, script string
		timeout      time.Duration
		want         []string
	}{
		{"crashes", "echo no space left on device; exit 7", lifecycle.DefaultTimeout,
			[]string{"etcd has ended 3 times in a row: exit status 7", "no space left on device"}},
		{"hangs", "echo it is early; exec sleep 600", 3 * time.Second, []string{"not done within 3s", "still waiting for the API server: etcd is not ready", "it is early"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "lab") // a short path: sockets lie in it
			if err != nil {
				t.Fatal(err)
			}
			d := layout.Dir(dir)
			script := filepath.Join(t.TempDir(), "controlplane")
			if err := os.WriteFile(script, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := prepare(t.Context(), UpOptions{Dir: d}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				os.Remove(d.LockFile()) // this process is the lab's here, and stays
				if err := Destroy(context.Background(), d); err != nil || d.Exists() {
					t.Errorf("destroy: %v", err)
				}
			})
			l, err := newLab(d, layout.Binaries{App: app, DNS: dns, ControlPlane: script}, func(lifecycle.Step) {})
			if err != nil {
				t.Fatal(err)
			}
			err = l.up(t.Context(), lifecycle.NewDeadline(c.timeout))
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v\nwant %q in it", err, want)
				}
			}
			var s status.Status
			if l.graph.Report(&s); len(s.Problems) == 0 || !strings.Contains(s.Problems[0], "the API server") {
				t.Errorf("status does not say what is waited for: %q", s.Problems)
			}
		})
	}
}
