package foreign

import (
	"context"
	"os"
	"path/filepath"

	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/source"
)

// The images of others' programs, as the manifests name them.
const (
	flannelImage   = "foreign.example/flannel:v0.28.10"
	pluginsImage   = "foreign.example/cni-plugins:v1.9.1"
	kubeProxyImage = "foreign.example/kube-proxy:v1.35.8"
)

// loadImages makes the images in the machine's store, where the lab's registry has them for nodes: programs of bin, and below them
// what nodes have of Debian, with iptables, nft and conntrack.
func loadImages(ctx context.Context, root string) error {
	dir, err := images.Dir()
	if err != nil {
		return err
	}
	store, err := images.Open(dir)
	if err != nil {
		return err
	}
	builtIn := source.BuiltIn{Base: filepath.Join(root, "bin", "base"), Roots: source.RootsDir}
	distribution, err := builtIn.Root(ctx)
	if err != nil {
		return err
	}
	program := func(at string, elem ...string) images.File {
		from := filepath.Join(append([]string{root, "bin"}, elem...)...)
		if real, err := filepath.EvalSymlinks(from); err == nil {
			from = real
		}
		return images.File{Path: at, Source: from}
	}
	plugins := []images.File{
		program("/opt/plugins/bridge", "foreign", "bridge"), program("/opt/plugins/host-local", "foreign", "host-local"),
		program("/opt/plugins/portmap", "foreign", "portmap"),
	}
	for _, a := range []images.Assembly{
		{Name: flannelImage, Layers: []images.Layer{{Dir: distribution}, {Files: append(plugins, program("/opt/bin/flanneld", "foreign", "flanneld"))}}},
		{Name: pluginsImage, Layers: []images.Layer{{Dir: distribution}, {Files: plugins}}},
		{Name: kubeProxyImage, Layers: []images.Layer{{Dir: distribution},
			{Files: []images.File{program("/usr/local/bin/packetwalk-controlplane", "packetwalk-controlplane"),
				{Path: "/usr/local/bin/kube-proxy", Link: "packetwalk-controlplane"}}}}},
	} {
		if _, err := store.Assemble(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// built reports whether the programs are there.
func built(root string) error {
	_, err := os.Stat(filepath.Join(root, "bin", "foreign", "portmap"))
	return err
}
