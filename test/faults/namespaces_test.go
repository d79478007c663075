package faults

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab"
)

// TestLostNamespaces takes away the mounts of the hosts' network namespaces while the lab process runs, while none does, and before "down".
func TestLostNamespaces(t *testing.T) {
	t.Parallel()
	agent := 0
	t.Cleanup(func() { // after "down", which fresh runs when the namespaces are lost
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", agent)); err == nil {
			t.Errorf("the node's agent is still there: process %d, %s", agent, exe)
		}
	})
	w := fresh(t, "lab-lost")
	vip := deploy(t, w)
	hosts := []string{node, "client", "testvm", "controlplane", "fabric", "internet"}
	lose := func(t *testing.T) map[string]uint64 {
		was := map[string]uint64{}
		for _, host := range hosts {
			path := lab.DirOf(w.Name).NetNS(host)
			ns, err := netns.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			was[host] = ns.Inode()
			ns.Close()
			if err := netns.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		return was
	}
	repaired := func(t *testing.T, was map[string]uint64, lasting ...string) {
		w.Run(t, "up", "--name", w.Name)
		well(t, w)
		for _, host := range lasting {
			ns, err := netns.Open(lab.DirOf(w.Name).NetNS(host))
			if err != nil {
				t.Error(err)
				continue
			}
			if ns.Inode() != was[host] {
				t.Errorf("%s has another namespace", host)
			}
			ns.Close()
		}
		eventually.Succeeds(t, time.Minute, func() error { return request(w, vip) })
	}
	t.Run("lab process runs", func(t *testing.T) {
		was := lose(t)
		problems := strings.Join(status(t, w).Problems, "\n")
		for _, host := range hosts {
			want := fmt.Sprintf("%s: its network namespace is no longer mounted at %s; 'packetwalk up --name %s' mounts it again", host,
				lab.DirOf(w.Name).NetNS(host), w.Name)
			if !strings.Contains(problems, want) {
				t.Errorf("status does not say %q:\n%s", want, problems)
			}
		}
		repaired(t, was, hosts...)
	})
	t.Run("no lab process", func(t *testing.T) {
		kill(t, status(t, w).Pid)
		eventually.Succeeds(t, time.Minute, func() error {
			if status(t, w).Pid != 0 {
				return errors.New("the lab process runs")
			}
			return nil
		})
		was := lose(t)
		// No process lives in those of client and testvm: they end with their mounts and are made anew.
		repaired(t, was, node, "controlplane", "fabric", "internet")
	})
	agent = status(t, w).Nodes[0].Agent.Pid
	lose(t)
}
