package fabric_test

import (
	"os"
	"strings"
	"testing"
)

// A machine's NIC and the fabric's end of it, and the links that a machine makes later, spread what they receive.
func TestReceiveIsSpread(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 2)
	if _, err := os.Stat("/proc/sys/net/core/rps_default_mask"); err != nil {
		t.Skip("the kernel is older than 6.3")
	}
	nic := w.cfg.Network.NICs[0]
	run(t, w.ns["node0"], "ip", "link", "add", "pod", "type", "veth", "peer", "name", "peer")
	want := strings.TrimSpace(run(t, w.ns["node0"], "sed", "-n", "s/^Cpus_allowed:\t//p", "/proc/self/status"))
	for link, in := range map[string]string{nic.Link(): "fabric", "eth0": "node0", "pod": "node0"} {
		ns := w.ns[in]
		if in == "fabric" {
			ns = w.fabric.Namespace()
		}
		// sysfs shows the namespace that it was mounted in.
		got := strings.TrimSpace(run(t, ns, "unshare", "--mount", "sh", "-c",
			"mount -t sysfs sysfs /sys && cat /sys/class/net/"+link+"/queues/rx-0/rps_cpus"))
		if got != want {
			t.Errorf("%s in %s receives on processors %s, want %s", link, in, got, want)
		}
	}
}
