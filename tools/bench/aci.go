package main

import (
	"fmt"
	"time"
)

const virtualNode = oneNode + "spec: {virtualNode: {enabled: true}}\n"

func groupPod(name string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {type: virtual-kubelet}
  tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]
  containers: [{name: kuard, image: "gcr.io/kuar-demo/kuard-amd64:blue", ports: [{containerPort: 8080}]}]
`, name)
}

// benchACI measures, on one lab, from the beginning of kubectl apply of a pod to its container group being Ready, as the API tells it.
func benchACI(n int) error {
	return onPods("aci", virtualNode, n, "target: kubectl apply to Ready 2 s", func(l *lab, t *table, i int, seen <-chan podSighting) error {
		name := fmt.Sprintf("group-%d", i)
		begin := time.Now()
		if err := l.apply(groupPod(name)); err != nil {
			return err
		}
		if err := groupTimes(t, name, begin, seen); err != nil {
			return err
		}
		_, err := l.kubectl("delete", "pod", name, "--grace-period=1")
		return err
	})
}

// groupTimes waits until a pod is Ready and adds the times that it took.
func groupTimes(t *table, name string, begin time.Time, seen <-chan podSighting) error {
	first, err := firstSeen(name, seen)
	if err != nil {
		return err
	}
	t.add("kubectl apply to container group Ready", "s", first["Ready"].Sub(begin).Seconds())
	t.add("… of that kubectl, to the pod's creation", "s", first["created"].Sub(begin).Seconds())
	t.add("… scheduler", "s", first["scheduled"].Sub(first["created"]).Seconds())
	t.add("… connector and Azure, to Ready", "s", first["Ready"].Sub(first["scheduled"]).Seconds())
	return nil
}
