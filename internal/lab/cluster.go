package lab

import (
	"context"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"

	"packetwalk.dev/internal/cloud"
)

// startCluster starts what needs the API server and returns when pods can be made and every node is Ready. The kubelets need
// nothing but the API and start at once; the agents have upstream's role for node proxies, which is there when the control plane
// is ready.
func (l *lab) startCluster(ctx context.Context, ready <-chan struct{}) error {
	l.startCloud(ctx)
	var g errgroup.Group
	g.Go(func() error { return l.startKubelets(ctx) })
	g.Go(func() error { return l.startAgents(ctx, ready) })
	g.Go(func() error { return waitDefaultAccount(ctx, l.client) })
	if err := g.Wait(); err != nil {
		return err
	}
	l.done("%d of %d nodes Ready", len(l.nodes), len(l.nodes))
	return nil
}

// startCloud starts upstream's service controller over Azure's load balancer.
func (l *lab) startCloud(ctx context.Context) {
	factory := informers.NewSharedInformerFactory(l.client, 0)
	go func() {
		if err := cloud.Run(ctx, l.client, factory, l.fabric, cloudName); err != nil && ctx.Err() == nil {
			l.log.Error("service controller", "err", err)
		}
	}()
}
