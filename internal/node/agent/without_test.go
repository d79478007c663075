package agent

import (
	"context"
	"log"
	"os"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/service"
)

// oneService is an API with a service whose health check nobody but a service proxy answers.
type oneService struct{ objectSource }

func (oneService) Snapshot() kube.Snapshot {
	return kube.Snapshot{Services: []*corev1.Service{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.7", ClusterIPs: []string{"10.0.0.7"},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30007, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}}}
}

// TestWithoutServiceProxy: beside another service proxy the agent has none of its ports, settings and rules, and still what is beside it.
func TestWithoutServiceProxy(t *testing.T) {
	o := Defaults()
	o.ServiceProxy, o.Families, o.MetricsAddress = false, []service.Family{service.IPv4, service.IPv6}, ""
	o.HealthzAddress = "in use"
	a, err := newAgent(o, newMetrics(o.Backend), log.New(os.Stderr, "", 0))
	if err != nil {
		t.Fatal(err)
	}
	a.source = oneService{}
	var beside sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	if err := a.serve(ctx, &beside); err != nil {
		t.Error(err)
	}
	a.addMasqAgent(nil)
	if len(a.proxies) != 0 || len(a.families) != 2 || len(a.keepers) != 1 {
		t.Errorf("%d proxies, %d families, %d keepers", len(a.proxies), len(a.families), len(a.keepers))
	}
	if !a.sync(ctx) || len(a.wantedChecks) != 0 {
		t.Errorf("health checks %v", a.wantedChecks)
	}
	cancel()
	beside.Wait()
}
