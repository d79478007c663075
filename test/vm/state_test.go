package vm

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// volatile settings change by themselves.
var volatile = regexp.MustCompile(`(?m)^net\.netfilter\.nf_conntrack_count = .*\n`)

// machineState returns the machine's state that a lab must not change: namespaces, processes, mounts, control groups, files, links,
// addresses, routes, rules and settings of the network.
func machineState(t *testing.T) map[string]string {
	t.Helper()
	state := map[string]string{"processes of packetwalk": packetwalkProcesses(t)}
	groups, err := filesBelow("/sys/fs/cgroup", "packetwalk")
	if err != nil {
		t.Fatal(err)
	}
	state["control groups"] = strings.Join(groups, "\n")
	for _, command := range []string{
		"lsns -n -t net -o NS", "lsns -n -t pid -o NS", "lsns -n -t ipc -o NS",
		"find /run/netns /run/packetwalk /var/lib/packetwalk /tmp -mindepth 1 -maxdepth 1 ! -name 'Test*' 2>/dev/null",
		"grep -E 'packetwalk|overlay|nsfs' /proc/self/mountinfo", "losetup -a", "ip -o link", "ip -br addr", "ip route show table all", "ip rule",
		"iptables-save", "ip6tables-save", "nft -s list ruleset", "ebtables-save", "ipset save", "sysctl -a -r ^net.",
	} {
		out, _ := exec.Command("sh", "-c", command+" 2>&1 | sort").Output() // a missing folder is a state too
		state[command] = volatile.ReplaceAllString(string(out), "")
	}
	return state
}

// packetwalkProcesses lists the processes whose program is packetwalk's, or which are in a control group of a lab, other than this test.
// The kernel needs a moment for those that were killed.
func packetwalkProcesses(t *testing.T) string {
	t.Helper()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(filepath.Dir(self), "../../bin")
	var found []string
	for range 50 {
		found = nil
		dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
		for _, dir := range dirs {
			exe, _ := os.Readlink(filepath.Join(dir, "exe")) // a kernel thread has none
			group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
			if strings.HasPrefix(exe, bin+"/") || strings.HasPrefix(exe, "/memfd:packetwalk") || strings.Contains(string(group), "/packetwalk/") {
				found = append(found, dir+" "+exe)
			}
		}
		if len(found) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return strings.Join(found, "\n")
}

// expectSame compares two states, line by line. Lines that are new may be of a module that was loaded meanwhile only among settings.
func expectSame(t *testing.T, before, after map[string]string) {
	t.Helper()
	for name, was := range before {
		old, now := strings.Split(was, "\n"), strings.Split(after[name], "\n")
		for _, line := range old {
			if !slices.Contains(now, line) {
				t.Errorf("%s: missing: %s", name, line)
			}
		}
		for _, line := range now {
			if !slices.Contains(old, line) && !strings.HasPrefix(name, "sysctl") {
				t.Errorf("%s: left: %s", name, line)
			}
		}
	}
}

// filesBelow finds files and directories of one name. What disappears meanwhile is ignored.
func filesBelow(root, name string) (found []string, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == name {
			found = append(found, path)
		}
		if os.IsNotExist(err) && path != root {
			return nil
		}
		return err
	})
	return found, err
}
