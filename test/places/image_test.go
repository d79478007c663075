package places

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"packetwalk.dev/internal/testing/runc"
	"packetwalk.dev/test/world"
)

// unpackImage writes the files of the only image of an archive of an OCI image layout to root.
func unpackImage(t *testing.T, archive, root string) v1.Config {
	t.Helper()
	layout := t.TempDir()
	tar(t, archive, layout)
	read := func(name string, to any) {
		text, err := os.ReadFile(filepath.Join(layout, name))
		if err == nil {
			err = json.Unmarshal(text, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	blob := func(d v1.Hash) string { return filepath.Join("blobs", d.Algorithm, d.Hex) }
	var index v1.IndexManifest
	read("index.json", &index)
	read(blob(index.Manifests[0].Digest), &index)
	var manifest v1.Manifest
	read(blob(index.Manifests[0].Digest), &manifest)
	for _, l := range manifest.Layers {
		tar(t, filepath.Join(layout, blob(l.Digest)), root)
	}
	var config v1.ConfigFile
	read(blob(manifest.Config.Digest), &config)
	return config.Config
}

// tar unpacks an archive, which may be compressed.
func tar(t *testing.T, archive, dir string) {
	t.Helper()
	out, err := exec.Command("tar", "-xf", archive, "-C", dir, "--numeric-owner", "--xattrs", "--xattrs-include=security.capability").CombinedOutput()
	if err != nil {
		t.Fatalf("tar %s: %v: %s", archive, err, out)
	}
}

// TestLabImage starts the image that LAB_IMAGE names in a container on overlayfs, asks its API server and its first front end through the
// published ports, and stops it.
func TestLabImage(t *testing.T) {
	archive := os.Getenv("LAB_IMAGE")
	if archive == "" {
		t.Skip("LAB_IMAGE names no archive; make test-lab-image does")
	}
	w := world.New(t, fmt.Sprintf("image-%d", os.Getpid()))
	lower, base := t.TempDir(), t.TempDir()
	config := unpackImage(t, archive, lower)
	mount(t, "tmpfs", base, "tmpfs", 0, "")
	root := filepath.Join(base, "merged")
	for _, dir := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount(t, "overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, base, base))
	// Docker makes this file, too.
	if err := os.WriteFile(filepath.Join(root, "etc", "resolv.conf"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	spec := runc.Spec{Program: runcOf(w), Root: root, Args: config.Entrypoint, Env: config.Env, Mounts: []runc.Mount{runc.Cgroups}}
	for volume := range config.Volumes {
		spec.Mounts = append(spec.Mounts, runc.Mount{Destination: volume, Type: "tmpfs", Source: "tmpfs"})
	}
	c, err := runc.Start(t.Context(), w.Name, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	})
	p := &place{root: root, command: c.Command}
	manifest, err := os.ReadFile(w.Example("azure-cni", "whereami.yaml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "tmp", "whereami.yaml"), manifest, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ command, want string }{
		{"sed 's#server: .*#server: https://127.0.0.1:6443#' /run/packetwalk/lab/kubeconfig >/tmp/kubeconfig && " +
			"KUBECONFIG=/tmp/kubeconfig /packetwalk-*/packetwalk-controlplane kubectl apply -f /tmp/whereami.yaml", "service/whereami"},
		{"curl -sSf -m 5 http://127.0.0.1:8080", "10.244."},
	} {
		eventually.Succeeds(t, 5*time.Minute, func() error {
			out, err := p.try(time.Minute, "sh", "-c", test.command)
			if err == nil && !strings.Contains(out, test.want) {
				err = fmt.Errorf("no %q in %q", test.want, out)
			}
			return err
		})
	}
	stop(t, w)
	labs, err := fs.Glob(os.DirFS(filepath.Join(root, "run", "packetwalk")), "lab")
	if err != nil || len(labs) > 0 {
		t.Errorf("labs after SIGTERM: %v, %v", labs, err)
	}
}

// stop sends SIGTERM to a container's first process, and waits for its end.
func stop(t *testing.T, w *world.World) {
	t.Helper()
	if out, err := exec.Command(runcOf(w), "kill", w.Name, "TERM").CombinedOutput(); err != nil {
		t.Fatalf("runc kill: %v: %s", err, out)
	}
	eventually.Succeeds(t, 2*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, runcOf(w), "state", w.Name).CombinedOutput()
		if err == nil && !strings.Contains(string(out), `"status": "stopped"`) {
			err = fmt.Errorf("the container runs: %s", out)
		}
		return err
	})
}
