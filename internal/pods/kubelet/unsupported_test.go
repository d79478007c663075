package kubelet

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fields that have no effect are told of, each once in a pod's life, also when a kubelet takes the pod over.
func TestFieldsWithoutEffectAreToldOf(t *testing.T) {
	b := newBench(t)
	b.create(testPod("plain"))
	b.await("plain", "ready", ready)
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.HostPID, p.Spec.HostIPC, p.Spec.ShareProcessNamespace = true, true, new(true)
		p.Spec.Volumes = []corev1.Volume{
			{Name: "fast", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
			{Name: "slow", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, Protocol: corev1.ProtocolTCP},
			{ContainerPort: 81}}
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: quantity("64Mi"), corev1.ResourceCPU: quantity("100m")}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: quantity("1Mi")}
	}))
	b.await("web", "ready", ready)
	want := []string{
		"emptyDir.medium Memory (volume fast) has no effect in the lab: the volume is a directory of the machine's file system",
		"hostIPC has no effect in the lab: each container has an IPC namespace of its own",
		"hostPID has no effect in the lab: each container has a process namespace of its own",
		"hostPort (8080/tcp) has no effect in the lab: no plugin of the node's CNI configuration takes portMappings; " +
			"use a Service of type NodePort, or hostNetwork",
		"resources.limits (container app: cpu 100m, memory 64Mi) has no effect in the lab: limits are reported, not enforced",
		"shareProcessNamespace has no effect in the lab: each container has a process namespace of its own",
	}
	if diff := cmp.Diff(want, b.warnings(len(want))); diff != "" {
		t.Error(diff)
	}
	b.stop()
	b.start()
	b.create(testPod("mapped", func(p *corev1.Pod) { // on the node's network a host port is the container's own
		p.Spec.HostNetwork = true
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
		p.Spec.ShareProcessNamespace = new(true)
	}))
	want = append(want, "shareProcessNamespace has no effect in the lab: each container has a process namespace of its own")
	slices.Sort(want)
	if diff := cmp.Diff(want, b.warnings(len(want))); diff != "" {
		t.Error(diff)
	}
}

func TestHostPortsAreLeftToAPluginThatMapsThem(t *testing.T) {
	b := newBench(t)
	b.network.maps = true
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.HostIPC = true // something to wait for
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	}))
	b.await("web", "ready", ready)
	want := []string{"hostIPC has no effect in the lab: each container has an IPC namespace of its own"}
	if diff := cmp.Diff(want, b.warnings(1)); diff != "" {
		t.Error(diff)
	}
}

// warnings waits for at least so many events NotSupported and gives their messages in order; one that counts several times is several.
func (b *bench) warnings(atLeast int) (messages []string) {
	b.t.Helper()
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		list, err := b.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		messages = nil
		for _, e := range list.Items {
			for range e.Count {
				if e.Reason == "NotSupported" && e.Type == corev1.EventTypeWarning && e.InvolvedObject.Kind == "Pod" &&
					e.InvolvedObject.FieldPath == "" {
					messages = append(messages, e.Message)
				}
			}
		}
		slices.Sort(messages)
		if len(messages) >= atLeast {
			return messages
		}
		if time.Now().After(limit) {
			b.t.Fatalf("events: %q", messages)
		}
	}
}
