package session

import (
	"context"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/usercluster"
)

// clusterBackend is a cluster of which the objects are read at once, and hosts on demand, each on its node.
type clusterBackend struct {
	cluster *usercluster.Cluster
	view    *usercluster.View
	source  *usercluster.Source
}

// OpenCluster reads the objects of a cluster. Its nodes are read when walks come to them. Close closes the cluster, too.
func OpenCluster(ctx context.Context, c *usercluster.Cluster) (*Session, error) {
	b := &clusterBackend{cluster: c}
	source, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	s := &Session{Notes: c.Unread(), Cluster: b.view, backend: b, source: source}
	s.setUnread(b.view.Unread())
	return s, nil
}

func (b *clusterBackend) read(ctx context.Context) (snapshot.Source, error) {
	view, err := b.cluster.Look(ctx)
	if err != nil {
		return nil, err
	}
	b.view, b.source = view, view.Source()
	return b.source, nil
}

func (b *clusterBackend) readHosts(ctx context.Context, hosts []string) bool {
	return b.source.Read(ctx, hosts)
}

func (b *clusterBackend) place(host string) (proof.Place, error) { return b.view.Place(host) }

func (b *clusterBackend) close(ctx context.Context) error { return b.cluster.Close(ctx) }
