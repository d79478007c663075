package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/model/snapshot"
)

// policies reports what the API server stores and nothing in a lab enforces: NetworkPolicies, where no network policy engine runs.
type policies struct {
	*lifecycle.Env
	api *apiserver.Server

	mu    sync.Mutex
	store cache.Store // of NetworkPolicies; nil before the watch started
}

// notEnforced is the message of the event, and the end of the warning.
const notEnforced = "this lab has no network policy engine, so the policy has no effect, as on AKS without one"

func (l *policies) Start(ctx context.Context) error {
	l.Keep(ctx, "the watch of what has no effect", l.watch)
	return nil
}

// watch records an event on each object that has no effect, and again when it changes.
func (l *policies) watch(ctx context.Context) error {
	broadcast := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcast.Shutdown()
	broadcast.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: l.api.Client.CoreV1().Events("")})
	events := broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "packetwalk"})
	factory := informers.NewSharedInformerFactory(l.api.Client, 0)
	defer factory.Shutdown()
	networkPolicies := factory.Networking().V1().NetworkPolicies().Informer()
	if err := onChange(networkPolicies, func(before, p *networkingv1.NetworkPolicy) {
		if l.Cluster().Spec.Network.Policy == cluster.PolicyNone && (before == nil || p.Generation != before.Generation) {
			events.Event(p, corev1.EventTypeWarning, "PolicyNotEnforced", notEnforced)
		}
	}); err != nil {
		return err
	}
	l.mu.Lock()
	l.store = networkPolicies.GetStore()
	l.mu.Unlock()
	factory.Start(ctx.Done())
	<-ctx.Done()
	return ctx.Err()
}

// onChange calls a function for each object when it is added, with nil before it, and when it changes.
func onChange[T any](informer cache.SharedIndexInformer, call func(before, now *T)) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { call(nil, o.(*T)) },
		UpdateFunc: func(before, o any) { call(before.(*T), o.(*T)) },
	})
	return err
}

// Report lists what has no effect, and warns of it.
func (l *policies) Report(s *status.Status) {
	l.mu.Lock()
	store := l.store
	l.mu.Unlock()
	if store == nil {
		return
	}
	var unenforced []any
	if l.Cluster().Spec.Network.Policy == cluster.PolicyNone {
		unenforced = store.List()
	}
	for _, o := range unenforced {
		p := o.(*networkingv1.NetworkPolicy)
		s.IgnoredPolicies = append(s.IgnoredPolicies, status.IgnoredPolicy{
			Namespace: p.Namespace, Name: p.Name, PolicyTypes: p.Spec.PolicyTypes, PodSelector: p.Spec.PodSelector,
		})
	}
	slices.SortFunc(s.IgnoredPolicies, func(a, b status.IgnoredPolicy) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	if names := policyNames(s.IgnoredPolicies); len(names) > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("NetworkPolicy %s: %s", snapshot.List(names), notEnforced))
	}
}

func policyNames(all []status.IgnoredPolicy) (names []string) {
	for _, p := range all {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return names
}
