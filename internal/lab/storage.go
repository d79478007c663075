package lab

import (
	"context"

	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/nodes"
	"packetwalk.dev/internal/lab/volumes"
	"packetwalk.dev/internal/pods/realnode"
)

// storage is the StorageClass default and its provisioner. Nothing waits for them.
type storage struct {
	*lifecycle.Env
	api   *apiserver.Server
	nodes *nodes.Nodes
	ready <-chan struct{} // closes when the cluster is ready
}

func (l *storage) Start(ctx context.Context) error {
	l.Keep(ctx, "the provisioner of volumes", func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-l.ready:
		}
		class, err := manifests.StorageClass()
		if err != nil {
			return err
		}
		if err := manifests.Ensure(ctx, l.api.REST(), class); err != nil { // users may have changed it
			return err
		}
		return volumes.Provisioner{Path: realnode.VolumesDir, Dir: l.volumesOf}.Run(ctx, l.api.Client)
	})
	return nil
}

// volumesOf returns where a node's volumes are on the machine.
func (l *storage) volumesOf(name string) (root, below string, ok bool) {
	for _, n := range l.nodes.List() {
		if n.Name == name && n.Runtime == cluster.RuntimeContainerd {
			return l.Dir.NodeState(name), realnode.Volumes, true
		}
	}
	return "", "", false
}
