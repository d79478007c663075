package realnode

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/test/world"
)

// privileged: what a privileged pod with the node's processes and root cannot do to the machine: its disks, its memory, its settings, its
// modules; and that it finds no file of the machine's but the node's own. What it tries would change nothing where it could.
func privileged(t *testing.T, w *world.World, node string) {
	sh := func(script string) (string, error) {
		return w.Try(time.Minute, "kubectl", "--name", w.Name, "exec", "agent", "--", "sh", "-c", script)
	}
	var root unix.Stat_t
	if err := unix.Stat("/", &root); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{
		fmt.Sprintf("mknod /dev/disk b %d %d", unix.Major(root.Dev), unix.Minor(root.Dev)),
		"mknod /dev/loop b 7 0",
		"mknod /dev/memory c 1 1 && head -c 1 /dev/memory",
		"mknod /dev/ports c 1 4 && head -c 1 /dev/ports",
		"value=$(cat /proc/sys/vm/swappiness); echo $value > /proc/sys/vm/swappiness",
		"value=$(cat /proc/sys/kernel/pid_max); echo $value > /proc/sys/kernel/pid_max",
		"value=$(cat /host/proc/sys/fs/file-max); echo $value > /host/proc/sys/fs/file-max",
		"for device in /host/dev/* /dev/*; do test ! -b $device || exit 0; done; exit 1",
		"chmod 755 /proc/1/exe", ": >> /proc/1/exe", "touch /proc/1/exe", // the program of the machine's labs
		"for pid in $(pgrep packetwalk-init); do chmod 755 /proc/$pid/exe && exit 0; done; exit 1",
	} {
		if out, err := sh(script); err == nil {
			t.Errorf("a privileged pod can: %s: %s", script, out)
		}
	}
	for _, script := range []string{ // so that what it cannot is not for want of a shell
		"mknod /dev/nothing c 1 3 && echo > /dev/nothing",
		"value=$(cat /proc/sys/net/ipv4/ip_forward); echo $value > /proc/sys/net/ipv4/ip_forward",
		"test $(cat /proc/1/comm) = packetwalk-init",
		"for pid in $(pgrep packetwalk-init); do test $(stat -Lc %d:%i /proc/$pid/fd/0) = $(stat -c %d:%i /host/dev/null) || exit 1; done",
	} {
		if _, err := sh(script); err != nil {
			t.Errorf("a privileged pod cannot: %v", err)
		}
	}
	status, err := sh("cat /proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, capabilities, _ := strings.Cut(status, "CapEff:")
	var mask uint64
	if _, err := fmt.Sscanf(capabilities, "%x", &mask); err != nil || mask&(1<<unix.CAP_SYS_ADMIN) == 0 ||
		mask&(1<<unix.CAP_SYS_MODULE|1<<unix.CAP_SYS_RAWIO|1<<unix.CAP_DAC_READ_SEARCH) != 0 {
		t.Errorf("its capabilities are %x, %v", mask, err)
	}
	ownMounts(t, w, node, sh)
}

// ownMounts: of the machine's file systems a node has its own directories only, below proc_pid_mountinfo(5)'s root, the fourth field, and the
// layers of its first images, which are on a read-only one.
func ownMounts(t *testing.T, w *world.World, node string, sh func(string) (string, error)) {
	mounts, err := sh("cat /proc/1/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	own, disks := 0, map[string][]string{} // directories by the numbers of their device
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 1 {
			t.Fatalf("mountinfo: %q", line)
		}
		if fields[3] == "/" || strings.HasPrefix(fields[3], "/packetwalk/tunables/") || kind[0] == "nsfs" ||
			strings.HasPrefix(kind[0], "cgroup") {
			continue // a file system of the node's own, or a part of one
		}
		if strings.HasPrefix(fields[3], "/containerd/") {
			if options := strings.Split(kind[len(kind)-1], ","); options[0] != "ro" {
				t.Errorf("the node can write to a layer of its images: %s", line)
			}
			continue
		}
		onDisk := strings.HasPrefix(fields[3], "/.nodes/"+node+"/") // the lab's
		if !onDisk && !strings.Contains(fields[3], "/"+w.Name+"/nodes/"+node+"/") {
			t.Errorf("the node has %s of a file system of the machine's, at %s", fields[3], fields[4])
		}
		disks[fields[2]] = append(disks[fields[2]], fields[4])
		own++
	}
	if len(disks) != 1 { // the lab's, which has a limit; not the machine's /run
		t.Errorf("the node's directories are on several file systems: %v", disks)
	}
	if own < 4 {
		t.Errorf("the node has %d directories of its own:\n%s", own, mounts)
	}
	for _, file := range []string{"/run/packetwalk/node.json", "/opt/packetwalk/kubelet", "/etc/kubernetes/kubelet.key"} {
		if strings.Contains(mounts, " "+file+" ") {
			t.Errorf("%s is mounted", file)
		}
	}
	// What the node starts from is the machine's, whatever is written in the node.
	if _, err := sh("echo '{}' > /host/run/packetwalk/node.json"); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile("/var/lib/packetwalk/" + w.Name + "/nodes/" + node + "/node.json")
	if err != nil || !strings.Contains(string(text), node) {
		t.Errorf("the machine's description of the node: %v", err)
	}
	if _, err := sh("rm /host/run/packetwalk/node.json"); err != nil {
		t.Error(err)
	}
}
