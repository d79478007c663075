package podspec

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Field returns a field of a pod that is known before the pod runs (core/v1, ObjectFieldSelector), by its path, such as metadata.name or
// metadata.labels['app']; ok is false for a path that is none, or one of the status. Labels and annotations as a whole are key="value" with
// Go's quoting, sorted, one a line, without an end of line after the last.
func Field(pod *corev1.Pod, path string) (value string, ok bool) {
	switch path {
	case "metadata.name":
		return pod.Name, true
	case "metadata.namespace":
		return pod.Namespace, true
	case "metadata.uid":
		return string(pod.UID), true
	case "metadata.labels":
		return keyValues(pod.Labels), true
	case "metadata.annotations":
		return keyValues(pod.Annotations), true
	case "spec.nodeName":
		return pod.Spec.NodeName, true
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, true
	}
	field, key, ok := strings.Cut(strings.TrimSuffix(path, "']"), "['")
	if !ok || !strings.HasSuffix(path, "']") || key == "" {
		return "", false
	}
	switch field {
	case "metadata.labels":
		return pod.Labels[key], true
	case "metadata.annotations":
		return pod.Annotations[key], true
	}
	return "", false
}

func keyValues(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(lines, "\n")
}
