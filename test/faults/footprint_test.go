package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"packetwalk.dev/internal/base/procstat"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/test/world"
)

// hostState returns the state of the machine's own namespace that a lab must not touch.
func hostState(t *testing.T) map[string]string {
	t.Helper()
	state := map[string]string{}
	for _, command := range []string{"ip -o link", "ip -o addr", "ip route show table all", "ip rule", "iptables-save", "nft list ruleset",
		"ls /run/netns",
		"sysctl net.ipv4.ip_forward net.ipv4.conf.all.rp_filter net.ipv4.conf.all.proxy_arp"} {
		out, _ := exec.Command("sh", "-c", command).Output() // a missing folder is a state too
		state[command] = counters.ReplaceAllString(string(out), "")
	}
	return state
}

// counters and lifetimes change by themselves.
var counters = regexp.MustCompile(`(?m)\[\d+:\d+\]|^#.*$|valid_lft \S+|preferred_lft \S+|expires \S+`)

func expectSame(t *testing.T, before, after map[string]string) {
	t.Helper()
	for command, was := range before {
		if after[command] != was {
			t.Errorf("%s differs:\nbefore:\n%safter:\n%s", command, was, after[command])
		}
	}
}

// A footprint is where a lab is on the machine. Its namespaces stay open: the kernel gives the number of one that is gone to the next,
// which may be another test's.
type footprint struct {
	spaces []*netns.Namespace
	listen string
	lab    int
}

func footprintOf(t *testing.T, w *world.World) footprint {
	t.Helper()
	dir := string(lab.DirOf(w.Name))
	spaces, err := netns.OpenMounted(filepath.Join(dir, "netns"))
	if err != nil {
		t.Error(err)
	}
	f := footprint{lab: lab.DirOf(w.Name).Process(), spaces: spaces}
	if config, err := os.ReadFile(filepath.Join(dir, "kubeconfig")); err == nil {
		f.listen = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(string(config))
	}
	return f
}

func (f footprint) expectGone(t *testing.T, w *world.World) {
	t.Helper()
	dir := string(lab.DirOf(w.Name))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(mounts, []byte(dir+"/")) {
		t.Errorf("mounts are left:\n%s", mounts)
	}
	defer netns.CloseAll(f.spaces)
	var inodes []uint64
	for _, ns := range f.spaces {
		inodes = append(inodes, ns.Inode())
	}
	if pids, err := netns.Processes(inodes...); err != nil || len(pids) > 0 {
		t.Errorf("processes are left: %v", err)
		for _, pid := range pids {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Logf("%d: %q %v", pid, line, err)
		}
	}
	if runs(f.lab) {
		t.Errorf("the lab process %d is left", f.lab)
	}
	sockets, err := exec.Command("ss", "-Hlnxt").Output()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sockets, []byte(dir+"/")) || f.listen != "" && bytes.Contains(sockets, []byte(f.listen+" ")) {
		t.Errorf("sockets are left:\n%s", sockets)
	}
}

// runs reports whether a process exists and is not a zombie (state Z, proc_pid_stat(5)).
func runs(pid int) bool {
	stat, err := procstat.Read(fmt.Sprintf("/proc/%d", pid))
	return err == nil && stat.State != procstat.Zombie
}
