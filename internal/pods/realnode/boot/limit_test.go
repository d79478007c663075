package boot

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestLimits: what is in a node's control group can use the devices of a list, and change the settings of its own namespaces, and neither
// the machine's disks nor its settings. Each command that is refused there succeeds outside.
func TestLimits(t *testing.T) {
	kerneltest.NeedRoot(t)
	all, err := cgroup.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, cgroup.Hierarchy.V2)
	name := fmt.Sprintf("packetwalk-test-%d", os.Getpid())
	group := filepath.Join(all[i].Point, name)
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroup.Remove(name); err != nil {
			t.Error(err)
		}
	})
	if err := limitGroup(group); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	tests := []struct {
		name, script string
		allowed      bool
	}{
		{"a device of the list", "head -c 1 /dev/urandom >/dev/null", true},
		{"a node of a character device", "mknod d c 1 7", true},
		{"a device of the list by another name", "mknod d c 1 7; head -c 1 d >/dev/null", true},
		{"a pseudo-terminal", "script -qec true /dev/null >/dev/null", true},
		{"a node of a block device", "mknod d b 7 0", false},
		{"reading the kernel's log", "dd if=/dev/kmsg of=/dev/null count=0 2>/dev/null", true},
		{"writing to the kernel's log", "echo a test of packetwalk >/dev/kmsg", false},
		{"reading a setting of the machine", "cat /proc/sys/vm/overcommit_memory >/dev/null", true},
		{"writing a setting of the machine", "x=$(cat /proc/sys/vm/overcommit_memory); echo $x >/proc/sys/vm/overcommit_memory", false},
		{"writing a limit of the kernel", "x=$(cat /proc/sys/kernel/pid_max); echo $x >/proc/sys/kernel/pid_max", false},
		{"writing a setting of the network", "unshare -n sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'", true},
		{"writing a setting of all networks", "unshare -n sh -c 'f=/proc/sys/net/netfilter/nf_hooks_lwtunnel; x=$(cat $f); echo $x >$f'", false},
		{"writing a setting of shared memory", "unshare -i sh -c 'echo 65536 >/proc/sys/kernel/shmmax'", true},
		{"writing a setting of semaphores", "unshare -i sh -c 'echo 250 32000 32 128 >/proc/sys/kernel/sem'", true},
		{"writing a setting of message queues", "unshare -i sh -c 'echo 100 >/proc/sys/fs/mqueue/msg_max'", true},
		{"writing the host name", "unshare -u sh -c 'echo a >/proc/sys/kernel/hostname'", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run := func(inside bool) ([]byte, error) {
				cmd := exec.CommandContext(t.Context(), "sh", "-ec", test.script)
				cmd.Dir, cmd.SysProcAttr = t.TempDir(), &syscall.SysProcAttr{UseCgroupFD: inside, CgroupFD: int(dir.Fd())}
				return cmd.CombinedOutput()
			}
			if out, err := run(false); err != nil {
				t.Fatalf("outside: %v: %s", err, out)
			}
			out, err := run(true)
			if (err == nil) != test.allowed {
				t.Errorf("allowed %v, want %v: %v: %s", err == nil, test.allowed, err, out)
			}
		})
	}
}
