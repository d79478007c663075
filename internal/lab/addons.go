package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/hosts"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/status"
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

	installed atomic.Bool
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
			a.installed.Store(ctx.Err() == nil)
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
	if !a.installed.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dnsAskTime)
	defer cancel()
	problem, isMissing := dnsProblem(ctx, a.api.Client, time.Now())
	if isMissing {
		problem += status.RepairedByUp(s.Name)
	}
	if problem != "" {
		s.Problems = append(s.Problems, problem)
	}
}

const (
	// dnsAskTime bounds what a status asks the API server about CoreDNS.
	dnsAskTime = 2 * time.Second
	// dnsStartTime is how long CoreDNS's pod may take to start before that is a problem.
	dnsStartTime = 20 * time.Second
)

// dnsProblem returns in a sentence why the cluster's DNS does not answer, as far as its objects say, and "" where it does. isMissing reports
// that an object is missing or asks for no pod.
func dnsProblem(ctx context.Context, client kubernetes.Interface, now time.Time) (problem string, isMissing bool) {
	unread := func(err error) (string, bool) {
		return "whether CoreDNS runs is unknown: " + status.OneLine(err), false
	}
	_, err := client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, "kube-dns", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "CoreDNS: Service kube-system/kube-dns is missing: pods cannot look up names", true
	}
	if err != nil {
		return unread(err)
	}
	d, err := client.AppsV1().Deployments(metav1.NamespaceSystem).Get(ctx, "coredns", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "CoreDNS: Deployment kube-system/coredns is missing: pods cannot look up names", true
	case err != nil:
		return unread(err)
	case d.Status.AvailableReplicas > 0:
		return "", false
	case d.Spec.Replicas != nil && *d.Spec.Replicas == 0:
		return "CoreDNS: Deployment kube-system/coredns has 0 replicas: pods cannot look up names", true
	}
	since := d.CreationTimestamp.Time
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentAvailable && c.LastTransitionTime.After(since) {
			since = c.LastTransitionTime.Time
		}
	}
	if now.Sub(since) < dnsStartTime {
		return "", false
	}
	return "CoreDNS has no available pod: pods cannot look up names; 'kubectl -n kube-system describe pods -l k8s-app=kube-dns' shows why", false
}

// Repair applies the objects of DNS and addons where one of CoreDNS is missing.
func (a *addons) Repair(ctx context.Context) ([]string, error) {
	if !a.installed.Load() {
		return nil, nil
	}
	problem, isMissing := dnsProblem(ctx, a.api.Client, time.Now())
	if !isMissing {
		return nil, nil
	}
	return []string{problem}, a.apply(ctx)
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

// httpRouting returns the objects of that addon for a cluster of this lab.
func (a *addons) httpRouting(c *cluster.Cluster) func() ([]string, error) {
	return func() ([]string, error) {
		secret, err := hosts.ZoneSecret(a.Dir)
		if err != nil {
			return nil, err
		}
		return manifests.HTTPRouting(c, hosts.ZoneKey, secret)
	}
}
