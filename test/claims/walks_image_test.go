package claims

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/testing/containertest"
)

// program answers HTTP requests with who it is.
const program = `package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		entries, _ := os.ReadDir("/")
		fmt.Fprintln(w, os.Args, os.Getuid(), entries)
	})
	panic(http.ListenAndServe(":8080", nil))
}
`

// TestImage: a pod runs an image of the user's own, and goes on when the image is taken away; one whose
// image is not there says what to do.
func TestImage(t *testing.T) {
	t.Parallel()
	n := worldA(t, "whereami.yaml")
	ref := fmt.Sprintf("example.org/packetwalk-test:%d", os.Getpid())
	dir, err := os.MkdirTemp("", "hello-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary := filepath.Join(dir, "hello")
	// The go command runs as the user who called sudo.
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(binary+".go", []byte(program), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := containertest.GoBuild(binary, binary+".go"); err != nil {
		t.Fatal(err)
	}
	n.Run(t, "image", "build", binary, "-t", ref)
	loaded := true
	defer func() {
		if loaded {
			n.Run(t, "image", "rm", ref)
		}
	}()
	for name, image := range map[string]string{"own-image": ref, "no-image": "example.org/none@sha256:" + strings.Repeat("1", 64)} {
		n.Kubectl(t, "run", name, "--image", image, "--restart=Always", "--", "-x")
		defer n.Kubectl(t, "delete", "pod", name, "--wait=false")
	}
	n.Kubectl(t, "wait", "--for=condition=Ready", "pod/own-image", "--timeout=120s")
	var pod corev1.Pod
	n.Get(t, &pod, "pod", "own-image")
	if id := pod.Status.ContainerStatuses[0].ImageID; !strings.Contains(id, "@sha256:") {
		t.Errorf("image ID %q", id)
	}
	ask := func() {
		t.Helper()
		out := n.SSH(t, "pod/default/"+n.pod, "curl", "-sS", "--max-time", "3", fmt.Sprintf("http://%s:8080", pod.Status.PodIP))
		if out != "[/hello -x] 0 [d dev/ d etc/ - hello d proc/ d sys/ d tmp/ d var/]\n" { // var has the service account's token
			t.Errorf("the pod says %q", out)
		}
	}
	ask()
	live(t, n.World, "--from", "pod/"+n.pod, "--to", "pod/own-image:8080")
	n.Run(t, "image", "rm", ref)
	loaded = false
	ask()
	eventually.Succeeds(t, time.Minute, func() error {
		n.Get(t, &pod, "pod", "no-image")
		if s := pod.Status.ContainerStatuses; len(s) == 0 || s[0].State.Waiting == nil ||
			!strings.Contains(s[0].State.Waiting.Message, "packetwalk image load") {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
}
