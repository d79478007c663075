package realnode

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/test/world"
)

// TestFirstImages shows that a node has AKS's own images from its start, once the machine has the file system of them, which a lab makes in
// the background. Pods with and without a user namespace run them, and nothing on the node can write to their layers. Building an
// image again under one of these names gives new pods the new image. The labs of other tests run these images, so this one has a store
// for itself.
func TestFirstImages(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	const config = "apiVersion: packetwalk.dev/v1alpha1\nkind: Cluster\nspec:\n  nodePools: [{name: real}]\n"
	w := world.New(t, fmt.Sprintf("first-%d", os.Getpid()))
	w.Env = []string{"XDG_CACHE_HOME=" + t.TempDir()}
	t.Cleanup(func() { down(t, w) })
	var node string
	eventually.Succeeds(t, 4*time.Minute, func() error {
		up(t, w, config)
		node = nodes(t, w, "real")[0]
		if strings.Contains(w.SSH(t, node, "cat", "/proc/mounts"), " /var/lib/packetwalk-images ") {
			return nil
		}
		time.Sleep(30 * time.Second) // the lab makes the file system meanwhile
		down(t, w)
		return fmt.Errorf("node %s has no file system of images", node)
	})
	const image = "erjosito/whereami:1.3"
	for pod, hostUsers := range map[string]bool{"with-host-users": true, "with-own-users": false} {
		manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {hostUsers: %v, containers: [{name: c, image: %q}]}\n",
			pod, hostUsers, image)
		if _, err := w.TryInput(time.Minute, manifest, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		w.Kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout=60s")
		hasEvent(t, w, pod, "already present on machine")
		if out := w.Kubectl(t, "exec", pod, "--", "stat", "-c", "%u", "/bin/ls"); strings.TrimSpace(out) != "0" {
			t.Errorf("%s: /bin/ls belongs to user %s", pod, out)
		}
	}
	if out, err := w.Try(time.Minute, "ssh", "--name", w.Name, node, "--", "sh", "-c",
		"mount -o remount,rw /var/lib/packetwalk-images; touch /var/lib/packetwalk-images/x"); err == nil {
		t.Errorf("the node's root wrote to the file system of images:\n%s", out)
	}
	program := w.Root + "/bin/packetwalk-app"
	w.Run(t, "image", "build", program, "-t", image, "--env", fmt.Sprintf("OF=%d", os.Getpid()))
	before := w.Kubectl(t, "get", "pod", "with-own-users", "-o", "jsonpath={.status.containerStatuses[0].imageID}")
	run(t, w, "moved", image, "IfNotPresent")
	w.Kubectl(t, "wait", "--for=jsonpath={.status.containerStatuses[0].imageID}", "pod/moved", "--timeout=60s")
	if after := w.Kubectl(t, "get", "pod", "moved", "-o", "jsonpath={.status.containerStatuses[0].imageID}"); after == before {
		t.Errorf("the name was built again, and a new pod runs %s still", after)
	}
}
