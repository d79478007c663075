package lab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"packetwalk.dev/internal/lab/cluster"
)

// addonDelay is how long the cluster's DNS and addons wait when the cluster is ready: what a user starts at once has the processors for itself,
// and half a second less to wait.
const addonDelay = 1500 * time.Millisecond

// longestAddonPause is how long to wait at most before another try to install them.
const longestAddonPause = time.Minute

// startAddons installs the cluster's DNS and what spec.addons asks for, a moment later, and tries until that succeeds or ctx ends.
func (l *lab) startAddons(ctx context.Context) {
	for pause := addonDelay; ; pause = min(2*pause, longestAddonPause) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		err := l.tried(taskAddons, l.installAddons(ctx))
		if err == nil || ctx.Err() != nil {
			return
		}
		l.log.Error("install", "err", err)
	}
}

func (l *lab) installAddons(ctx context.Context) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	return errors.Join(l.installDNS(ctx), l.installHTTPRouting(ctx))
}

// httpRouting are the objects of the addon for HTTP application routing, one document each.
//
//go:embed addons/http_application_routing.yaml
var httpRouting string

func httpRoutingObjects(c *cluster.Cluster) ([]string, error) {
	return objects(httpRouting, map[string]any{"Zone": c.HTTPRoutingZone(), "Resolver": azureResolver})
}

func (l *lab) installHTTPRouting(ctx context.Context) error {
	if !l.cluster.HasAddon(cluster.AddonHTTPRouting) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	docs, err := httpRoutingObjects(l.cluster)
	if err == nil {
		err = applyObjects(ctx, l.client.CoreV1().RESTClient(), docs)
	}
	if err != nil {
		return fmt.Errorf("addon %s: %w", cluster.AddonHTTPRouting, err)
	}
	return nil
}

// reviseAddons installs and removes the addons that differ.
func (l *lab) reviseAddons(ctx context.Context, from, to *cluster.Cluster) error {
	is := to.HasAddon(cluster.AddonHTTPRouting)
	if is == from.HasAddon(cluster.AddonHTTPRouting) {
		return nil
	}
	bring := deleteObjects
	if is {
		bring = applyObjects
	}
	docs, err := httpRoutingObjects(to)
	if err == nil && !is {
		err = l.dropZone()
	}
	if err == nil {
		err = bring(ctx, l.client.CoreV1().RESTClient(), docs)
	}
	if err != nil {
		return fmt.Errorf("spec.addons: %s: %w", cluster.AddonHTTPRouting, err)
	}
	return nil
}
