package lab

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

func TestDNSProblem(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "kube-system", Name: name, CreationTimestamp: metav1.NewTime(created)}
	}
	service := &corev1.Service{ObjectMeta: named("kube-dns")}
	deployment := func(want, available int32) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: named("coredns"), Spec: appsv1.DeploymentSpec{Replicas: &want},
			Status: appsv1.DeploymentStatus{AvailableReplicas: available}}
	}
	for _, c := range []struct {
		name      string
		objects   []runtime.Object
		after     time.Duration
		want      string
		isMissing bool
	}{
		{"available", []runtime.Object{service, deployment(1, 1)}, time.Hour, "", false},
		{"starts", []runtime.Object{service, deployment(1, 0)}, time.Second, "", false},
		{"does not start", []runtime.Object{service, deployment(1, 0)}, time.Hour, "no available pod", false},
		{"scaled to 0", []runtime.Object{service, deployment(0, 0)}, time.Hour, "has 0 replicas", true},
		{"no Deployment", []runtime.Object{service}, time.Hour, "Deployment kube-system/coredns is missing", true},
		{"no Service", []runtime.Object{deployment(1, 1)}, time.Hour, "Service kube-system/kube-dns is missing", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, isMissing := dnsProblem(t.Context(), fake.NewClientset(c.objects...), created.Add(c.after))
			if !strings.Contains(got, c.want) || (got == "") != (c.want == "") || isMissing != c.isMissing {
				t.Errorf("%q, %v; want %q, %v", got, isMissing, c.want, c.isMissing)
			}
		})
	}
}
