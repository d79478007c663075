package lab_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/test/world"
)

// TestSnapshotOfALab loads every host of a real lab: nothing is missing, and every veth's other end is known, on both sides.
func TestSnapshotOfALab(t *testing.T) {
	w := world.New(t, fmt.Sprintf("snap-%d", os.Getpid()))
	t.Cleanup(func() {
		if _, err := w.Try(time.Minute, "down", "--name", w.Name); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.Try(2*time.Minute, "up", "--name", w.Name, "-f", w.Example("azure-cni", "cluster.yaml")); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "apply", "-f", w.Example("azure-cni", "whereami.yaml"))
	w.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=60s")
	origin, err := lab.Origin(t.Context(), lab.DirOf(w.Name))
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	taken, err := capture.Take(t.Context(), origin, &file, capture.Head{Packetwalk: "test", Taken: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if len(taken.Notes) > 0 || taken.Tools["iptables"] == "" {
		t.Errorf("notes %v, tools %v", taken.Notes, taken.Tools)
	}
	read, err := capture.Read(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		t.Fatal(err)
	}
	live, err := lab.Snapshot(t.Context(), lab.DirOf(w.Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("live", func(t *testing.T) { checkHosts(t, live) })
	t.Run("azure", func(t *testing.T) { asksAzure(t, lab.DirOf(w.Name), live) })
	t.Run("capture", func(t *testing.T) { checkHosts(t, capture.NewSource(read.Origin())) })
}

func checkHosts(t *testing.T, s *capture.Lazy) {
	for _, want := range []string{"fabric", "internet", "controlplane", "vm/testvm", "internet/ifconfig.co"} {
		if !slices.Contains(s.Names(), want) {
			t.Errorf("no host %s among %v", want, s.Names())
		}
	}
	pods := 0
	for _, name := range s.Names() {
		h, err := s.Host(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "pod/default/whereami-") {
			pods++
		}
		for part, why := range h.Unread {
			t.Errorf("%s: %s: %s", name, part, why)
		}
		for _, l := range h.FIB.Links {
			if l.Kind != "veth" {
				continue
			}
			p, ok := h.Peer(l.Name)
			if !ok {
				t.Errorf("%s: the other end of %s is not known", name, l.Name)
				continue
			}
			other, err := s.Host(p.Host)
			if err != nil {
				t.Errorf("%s %s: %v", name, l.Name, err)
				continue
			}
			if back, ok := other.Peer(p.PeerLink); !ok || back.Host != name || back.PeerLink != l.Name {
				t.Errorf("%s %s leads to %s %s, and that to %s %s", name, l.Name, p.Host, p.PeerLink, back.Host, back.PeerLink)
			}
		}
	}
	if pods != 2 {
		t.Errorf("%d pods of whereami, want 2", pods)
	}
	o := s.Objects()
	if err := s.ObjectsError(); err != nil {
		t.Error(err)
	}
	if len(o.Pods) != 4 || len(o.Nodes) != 1 || len(o.Services) != 4 { // CoreDNS and metrics-server among them
		t.Errorf("%d pods, %d nodes, %d services", len(o.Pods), len(o.Nodes), len(o.Services))
	}
}
