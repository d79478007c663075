package kubelet

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/pods/cgroup"
)

// sized are requests and limits of so much.
func sized(cpu, memory string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: quantity(cpu), corev1.ResourceMemory: quantity(memory)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

// TestResize: containers get new limits while they run, or are started again where their policy says so; the status has what they have, and
// why that is not what the pod says.
func TestResize(t *testing.T) {
	b := newBenchWith(t, func(_ *bench, c *Config) {
		c.Node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: quantity("1"), corev1.ResourceMemory: quantity("1Gi")}
	})
	b.create(testPod("neighbour", func(p *corev1.Pod) { p.Spec.Containers[0].Resources = sized("600m", "1Mi") }))
	b.runtime.next(t)
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = sized("100m", "64Mi")
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
			{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}}
	}))
	c := b.runtime.next(t)
	b.await("web", "ready", ready)
	has := func(what, why string, restarts int32, want corev1.ResourceRequirements) {
		t.Helper()
		b.await("web", what, func(p *corev1.Pod) bool {
			s, said := p.Status.ContainerStatuses[0], ""
			if i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
			}); i >= 0 {
				said = string(p.Status.Conditions[i].Type) + " " + p.Status.Conditions[i].Reason + ": " + p.Status.Conditions[i].Message
			}
			return s.Resources != nil && equality.Semantic.DeepEqual(*s.Resources, want) && said == why && s.RestartCount == restarts &&
				equality.Semantic.DeepEqual(s.AllocatedResources, want.Requests) && s.State.Running != nil
		})
	}
	set := func(r corev1.ResourceRequirements) {
		t.Helper()
		pods := b.client.CoreV1().Pods("default")
		p, err := pods.Get(context.Background(), "web", metav1.GetOptions{})
		if err == nil {
			p.Spec.Containers[0].Resources = r
			_, err = pods.Update(context.Background(), p, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	has("as it began", "", 0, sized("100m", "64Mi"))

	set(sized("200m", "64Mi"))
	if diff := cmp.Diff(cgroup.Limits{Memory: 64 << 20, CPU: 200, Weight: 204}, <-c.limited); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	has("with more", "", 0, sized("200m", "64Mi"))
	set(sized("500m", "64Mi"))
	has("told to wait", "PodResizePending Deferred: Node didn't have enough resource: cpu, requested: 500, used: 600, capacity: 1000", 0,
		sized("200m", "64Mi"))
	set(sized("1500m", "64Mi"))
	has("refused", "PodResizePending Infeasible: Node didn't have enough capacity: cpu, requested: 1500, capacity: 1000", 0,
		sized("200m", "64Mi"))
	set(sized("200m", "64Mi"))
	has("as before", "", 0, sized("200m", "64Mi"))

	set(sized("300m", "32Mi"))
	if c = b.runtime.next(t); c.spec.Limits != (cgroup.Limits{Memory: 32 << 20, CPU: 300, Weight: 307}) {
		t.Errorf("started with %+v", c.spec.Limits)
	}
	has("started again", "", 1, sized("300m", "32Mi"))

	c.mu.Lock()
	c.tight = true
	c.mu.Unlock()
	set(sized("100m", "32Mi"))
	has("in trouble", "PodResizeInProgress Error: it is in use", 1, sized("300m", "32Mi"))
	b.stop()
	c.mu.Lock()
	c.tight = false
	c.mu.Unlock()
	b.start()
	has("with less, by the next kubelet", "", 1, sized("100m", "32Mi"))
}
