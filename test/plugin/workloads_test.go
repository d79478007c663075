package plugin

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"packetwalk.dev/internal/testing/eventually"
)

// managed are a Deployment, a StatefulSet, a DaemonSet and a Job, each called web, on the first node.
const managed = `
apiVersion: apps/v1
kind: %[1]s
metadata: {name: web}
spec:
  selector: {matchLabels: {kind: %[1]s}}
  template:
    metadata: {labels: {kind: %[1]s}}
    spec: {nodeSelector: {kubernetes.io/hostname: %[2]s}, terminationGracePeriodSeconds: 0, containers: [{name: web, image: "erjosito/whereami:1.3"}]}
---
`

const job = `
apiVersion: batch/v1
kind: Job
metadata: {name: web}
spec:
  template:
    spec: {restartPolicy: Never, nodeSelector: {kubernetes.io/hostname: %[2]s}, terminationGracePeriodSeconds: 0, containers: [{name: web, image: "erjosito/whereami:1.3"}]}
`

// workloads: each end that manages pods is one of its pods, also where others are called so, on the cluster and in a redacted capture.
func workloads(t *testing.T, p *plugin) {
	text := ""
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		text += fmt.Sprintf(managed, kind, p.nodes[0])
	}
	file := p.file(t, "workloads.yaml", text+fmt.Sprintf(job, "", p.nodes[0]))
	p.Kubectl(t, "apply", "-f", file)
	defer p.Kubectl(t, "delete", "--wait", "--cascade=foreground", "-f", file)
	defer func() {
		if t.Failed() {
			t.Log(p.Kubectl(t, "describe", "pods"))
		}
	}()
	ends := map[string]string{"deploy/web": `pod/default/web-[a-z0-9]+-[a-z0-9]{5}`, "statefulset.apps/web": "pod/default/web-0",
		"ds/web": "pod/default/web-[a-z0-9]{5}", "job/web": "pod/default/web-[a-z0-9]{5}"}
	pods := map[string]bool{}
	for end, pod := range ends {
		eventually.Succeeds(t, limit, func() error {
			s, err := p.try("walk", "--from", end, "--to", "pod/two:80", "--uid", "1337", "--live")
			found := regexp.MustCompile(`(?m)^\S+ stands for (` + pod + `)$`).FindStringSubmatch(s.out)
			if err == nil && (s.status != 0 || found == nil) {
				return fmt.Errorf("%s: status %d\n%s%s", end, s.status, s.out, s.err)
			}
			if err == nil {
				proved(t, s.out)
				pods[found[1]] = true
			}
			return err
		})
	}
	if len(pods) != len(ends) {
		t.Errorf("the pods are %v", pods)
	}
	capture, names := filepath.Join(p.dir, "redacted.pwcap.tar.gz"), filepath.Join(p.dir, "names.json")
	p.run(t, 0, "capture", p.nodes[0], "-o", capture, "--redact", "--map", names)
	for end, pod := range ends {
		// The way leaves the node, and the other one is not captured.
		out, _ := p.Command("walk", "--snapshot", capture, "--map", names, "--from", end, "--to", "pod/two:80").CombinedOutput()
		if !regexp.MustCompile(`(?m)^\S+ stands for ` + pod + `$`).Match(out) {
			t.Errorf("%s in a capture:\n%s", end, out)
		}
	}
}

// quota: a pod that a quota refuses is an error that names the quota, and not the rights.
func quota(t *testing.T, p *plugin) {
	p.Kubectl(t, "-n", "packetwalk", "create", "quota", "none-at-all", "--hard=pods=0")
	defer p.Kubectl(t, "-n", "packetwalk", "delete", "quota", "none-at-all")
	eventually.Succeeds(t, limit, func() error { // the quota counts when its status is there
		used := p.Kubectl(t, "-n", "packetwalk", "get", "quota", "none-at-all", "-o", "jsonpath={.status.hard.pods}")
		if strings.TrimSpace(used) != "0" {
			return fmt.Errorf("the quota has %q", used)
		}
		return nil
	})
	s := p.run(t, 1, append(toTwo, "--start-timeout", "20s")...)
	oneLine(t, s, `its pod is refused: .*exceeded quota: none-at-all.*; ResourceQuota none-at-all leaves no room for it: change it in namespace packetwalk`)
	if strings.Contains(s.err, "prints the rights") {
		t.Errorf("it points to the rights: %s", s.err)
	}
}
