package serviceproxy

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/service"
)

// TestObserve: what changed after the first sync is measured once, by the time that its controller noted.
func TestObserve(t *testing.T) {
	p, registry := newTestProxy(t, options.BackendNFTables, nil)
	f := &family{common: p.common, Family: service.IPv4, ports: service.NewPorts()}
	key := service.Key{Namespace: "default", Service: "web"}
	start := time.Now().Add(-time.Hour)
	slice := func(seconds int) *discoveryv1.EndpointSlice {
		at := start.Add(time.Duration(seconds) * time.Second).Format(time.RFC3339Nano)
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-1",
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: at}}}
	}
	for i, step := range []struct {
		slices []*discoveryv1.EndpointSlice
		count  int // of all that was measured
	}{
		{nil, 0}, {[]*discoveryv1.EndpointSlice{slice(1)}, 1}, {[]*discoveryv1.EndpointSlice{slice(1)}, 1},
		{[]*discoveryv1.EndpointSlice{slice(1), slice(2)}, 2},
	} {
		f.put(key, nil, step.slices)
		f.observe()
		text := string(registry.Text())
		want := fmt.Sprintf(`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} %d`, step.count)
		if strings.Contains(text, want) != (step.count > 0) {
			t.Errorf("step %d: no %s in\n%s", i, want, text)
		}
	}
}

// TestRulesWithoutPrograms: what a service proxy with iptables left behind is a fault where there are no programs to remove it.
func TestRulesWithoutPrograms(t *testing.T) {
	ns := newTestNamespace(t)
	p, _ := newTestProxy(t, options.BackendNFTables, nil)
	for _, of := range []struct {
		program string
		family  service.Family
	}{{"iptables-nft", service.IPv4}, {"ip6tables-nft", service.IPv6}} {
		if err := ns.Do(func() error {
			gone := failingSyncer{err: exec.ErrNotFound}
			f := &family{common: p.common, Family: of.family}
			if err := f.remove(t.Context(), gone); err != nil {
				t.Errorf("%v: without rules: %v", of.family, err)
			}
			if err := exec.Command(of.program, "-t", "nat", "-N", "KUBE-SERVICES").Run(); err != nil {
				return err
			}
			if err := f.remove(t.Context(), gone); err == nil || !strings.Contains(err.Error(), "iptables is not installed") {
				t.Errorf("%v: with rules: %v", of.family, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// stuckSyncer is a syncer whose rules cannot be removed the first time.
type stuckSyncer struct {
	syncer
	removals *int
}

func (h stuckSyncer) Remove(context.Context) error {
	if *h.removals++; *h.removals == 1 {
		return unix.EBUSY
	}
	return nil
}

// TestRemovesLater: what of others could not be removed after a sync is removed without another one.
func TestRemovesLater(t *testing.T) {
	ns := newTestNamespace(t)
	p, _ := newTestProxy(t, options.BackendNFTables, oneNode{})
	other := stuckSyncer{removals: new(int)}
	f := &family{common: p.common, Family: service.IPv4, ports: service.NewPorts(), syncer: failingSyncer{}, other: other}
	p.families = []*family{f}
	if err := ns.Do(func() error {
		if p.sync(t.Context(), f); f.failed > 0 || f.other == nil || *other.removals != 1 {
			t.Errorf("after a sync: %d removals", *other.removals)
		}
		f.syncer = stuckSyncer{} // whose repair finds nothing
		p.repair(t.Context())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if f.other != nil || *other.removals != 2 {
		t.Errorf("after a look: %d removals", *other.removals)
	}
}

func (stuckSyncer) Repair(context.Context) ([]string, error) { return nil, nil }
