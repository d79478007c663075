package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestField(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "n", UID: "u", Labels: map[string]string{"b": "2", "a/b": "1\n"}, Annotations: map[string]string{"x": "y"},
		},
		Spec: corev1.PodSpec{NodeName: "node", ServiceAccountName: "sa"},
	}
	for path, want := range map[string]string{
		"metadata.name": "p", "metadata.namespace": "n", "metadata.uid": "u", "spec.nodeName": "node", "spec.serviceAccountName": "sa",
		"metadata.labels": `a/b="1\n"` + "\n" + `b="2"`, "metadata.annotations": `x="y"`,
		"metadata.labels['a/b']": "1\n", "metadata.labels['none']": "", "metadata.annotations['x']": "y",
	} {
		if got, ok := Field(pod, path); !ok || got != want {
			t.Errorf("%s: %q, %v; want %q", path, got, ok, want)
		}
	}
	for _, path := range []string{"", "status.podIP", "metadata", "metadata.labels['']", "metadata.labels['a", "metadata.labels[a]",
		"spec['x']"} {
		if got, ok := Field(pod, path); ok {
			t.Errorf("%s: %q", path, got)
		}
	}
}
