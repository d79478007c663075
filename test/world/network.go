package world

import (
	"fmt"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"
)

// podNetwork is a configuration of packetwalk-cni for a range of pods, as kubenet has it.
const podNetwork = `{"cniVersion": "1.0.0", "name": "test", "plugins": [
	{"type": "packetwalk-cni", "mode": "kubenet", "bridge": "cbr0", "master": "eth0", "hairpinMode": true,
	 "ipam": {"type": "host-local", "subnet": %q}},
	{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}]}`

// PodNetwork gives the pods of a node a network, where the lab has none (plugin: none). It waits until the node has a range for its pods.
func (w *World) PodNetwork(t *testing.T, node string) {
	t.Helper()
	var pods string
	eventually.Succeeds(t, time.Minute, func() error {
		if pods = w.Kubectl(t, "get", "node", node, "-o", "jsonpath={.spec.podCIDR}"); pods == "" {
			return fmt.Errorf("node %s has no range for its pods", node)
		}
		return nil
	})
	w.SSH(t, node, "sh", "-c", `echo "$1" >/etc/cni/net.d/10-test.conflist`, "sh", fmt.Sprintf(podNetwork, pods))
}
