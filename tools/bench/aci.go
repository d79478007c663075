package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
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
func benchACI(n int) (err error) {
	l, err := makeLab("aci", virtualNode)
	defer l.end(&err)
	if err != nil {
		return err
	}
	api, err := l.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	seen := make(chan podSeen, 1000)
	if err := api.watch(ctx, "/api/v1/namespaces/default/pods", func(r io.Reader) { seePods(r, seen) }); err != nil {
		return err
	}
	var t table
	for i := range n {
		name := fmt.Sprintf("group-%d", i)
		begin := time.Now()
		if err := l.apply(groupPod(name)); err != nil {
			return err
		}
		if err := groupTimes(&t, name, begin, seen); err != nil {
			return err
		}
		if _, err := l.kubectl("delete", "pod", name, "--grace-period=1"); err != nil {
			return err
		}
	}
	t.print()
	fmt.Println("  (target: kubectl apply to Ready 2 s)")
	return nil
}

// podSeen is a pod as it was first seen in a stage.
type podSeen struct {
	name, stage string
	at          time.Time
}

// seePods tells of pods that are created, scheduled and Ready.
func seePods(r io.Reader, seen chan<- podSeen) {
	for d := json.NewDecoder(r); ; {
		var e struct{ Object object }
		if d.Decode(&e) != nil {
			return
		}
		o := e.Object
		for stage, is := range map[string]bool{"created": true, "scheduled": o.Spec.NodeName != "", "Ready": o.is("Ready")} {
			if is {
				select {
				case seen <- podSeen{o.Metadata.Name, stage, time.Now()}:
				default: // nobody reads any more
				}
			}
		}
	}
}

// groupTimes waits until a pod is Ready and adds the times that it took.
func groupTimes(t *table, name string, begin time.Time, seen <-chan podSeen) error {
	first := map[string]time.Time{}
	limit := time.After(time.Minute)
	for first["Ready"].IsZero() {
		select {
		case s := <-seen:
			if s.name == name && first[s.stage].IsZero() {
				first[s.stage] = s.at
			}
		case <-limit:
			return fmt.Errorf("pod %s is not Ready after a minute", name)
		}
	}
	t.add("kubectl apply to container group Ready", "s", first["Ready"].Sub(begin).Seconds())
	t.add("… of that kubectl, to the pod's creation", "s", first["created"].Sub(begin).Seconds())
	t.add("… scheduler", "s", first["scheduled"].Sub(first["created"]).Seconds())
	t.add("… connector and Azure, to Ready", "s", first["Ready"].Sub(first["scheduled"]).Seconds())
	return nil
}
