package lab

import (
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/hosts"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/status"

	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/lab/cluster"
)

// addonDelay is how long the cluster's DNS and addons wait when the cluster is ready: what a user starts at once has the processors for
// itself, and half a second less to wait.
const addonDelay = 1500 * time.Millisecond

// longestAddonPause is how long to wait at most before another try to install them.
const longestAddonPause = time.Minute

// addons are the cluster's DNS and what spec.addons asks for. They are installed some moments after the cluster is ready, and nothing waits
// for them.
type addons struct {
	*lifecycle.Env
	api   *apiserver.Server
	ready <-chan struct{} // closes when the cluster is ready
	mu    sync.Mutex      // of what is done to the objects
}

func (a *addons) Start(ctx context.Context) error {
	go a.install(ctx)
	return nil
}

// install tries until it succeeds or ctx ends.
func (a *addons) install(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-a.ready:
	}
	for d := addonDelay; pause.For(ctx, d); d = min(2*d, longestAddonPause) {
		if err := a.apply(ctx); ctx.Err() != nil || a.Fault(addonFault, err) == nil {
			return
		}
	}
}

const addonFault = "the cluster's DNS or addons could not be installed (this is tried again)"

// apply brings all into the API.
func (a *addons) apply(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lifecycle.DefaultTimeout)
	defer cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.Cluster()
	err := a.bring(ctx, manifests.Apply, func() ([]string, error) { return manifests.DNS(c) })
	if a.missingMetricsServer() == "" {
		err = errors.Join(err, a.bring(ctx, manifests.Apply, manifests.MetricsServer))
	}
	if c.HasAddon(cluster.AddonHTTPRouting) {
		err = errors.Join(err, a.bring(ctx, manifests.Apply, a.httpRouting(c)))
	}
	return err
}

// missingMetricsServer returns why metrics-server cannot run, or "".
func (a *addons) missingMetricsServer() string {
	if _, err := os.Stat(a.Binaries.MetricsServer()); err != nil {
		return "kubectl top has no figures: " + a.Binaries.MetricsServer() + " is missing; 'make controlplane' makes it"
	}
	return ""
}

func (a *addons) Report(s *status.Status) {
	if lack := a.missingMetricsServer(); lack != "" {
		s.Warnings = append(s.Warnings, lack)
	}
}

// Change installs and removes the addons that differ.
func (a *addons) Change(ctx context.Context, c lifecycle.Change) error {
	ctx, cancel := c.Deadline.Bound(ctx)
	defer cancel()
	is := c.To.HasAddon(cluster.AddonHTTPRouting)
	if is == c.From.HasAddon(cluster.AddonHTTPRouting) {
		return nil
	}
	bring := manifests.Apply
	if !is {
		bring = manifests.Delete
		if err := hosts.DropZone(a.Dir); err != nil {
			return err
		}
	}
	return a.lockedBring(ctx, bring, a.httpRouting(c.To))
}

func (a *addons) lockedBring(ctx context.Context, bring func(context.Context, rest.Interface, []string) error,
	objects func() ([]string, error)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bring(ctx, bring, objects)
}

func (a *addons) bring(ctx context.Context, bring func(context.Context, rest.Interface, []string) error,
	objects func() ([]string, error)) error {
	docs, err := objects()
	if err == nil {
		err = bring(ctx, a.api.REST(), docs)
	}
	if err != nil {
		return fmt.Errorf("addons: %w", err)
	}
	return nil
}

// httpRouting are the objects of that addon for a cluster of this lab.
func (a *addons) httpRouting(c *cluster.Cluster) func() ([]string, error) {
	return func() ([]string, error) {
		secret, err := hosts.ZoneSecret(a.Dir)
		if err != nil {
			return nil, err
		}
		return manifests.HTTPRouting(c, hosts.ZoneKey, secret)
	}
}
