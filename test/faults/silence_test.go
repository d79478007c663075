package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/test/world"
)

// TestIgnoredIsSaid: what the lab does not do is said where a user would look for it: in events, in the status, and in walks.
func TestIgnoredIsSaid(t *testing.T) {
	t.Parallel()
	w := world.Up(t, "azure-cni", "whereami.yaml")
	t.Cleanup(func() { w.Kubectl(t, "delete", "-f", w.Example("azure-cni", "whereami.yaml")) })
	w.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=1m")
	policies := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(policies, []byte(`
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny-in}, spec: {podSelector: {}, policyTypes: [Ingress]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: others}, spec: {podSelector: {matchLabels: {app: other}}}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "apply", "-f", policies)
	t.Cleanup(func() { w.Kubectl(t, "delete", "-f", policies) })
	eventually.Succeeds(t, time.Minute, func() error {
		_, err := w.Try(time.Minute, "kubectl", "--name", w.Name, "wait", "--for=jsonpath={.reason}=PolicyNotEnforced", "--timeout=1s",
			"event", "--field-selector=involvedObject.name=deny-in")
		return err
	})
	var s lab.Status
	eventually.Succeeds(t, time.Minute, func() error {
		var names []string
		s = status(t, w)
		for _, p := range s.IgnoredPolicies {
			names = append(names, p.Namespace+"/"+p.Name)
		}
		if want := []string{"default/deny-in", "default/others"}; !slices.Equal(names, want) {
			return fmt.Errorf("status has the policies %q, want %q", names, want)
		}
		return nil
	})
	if !slices.ContainsFunc(s.Warnings, func(text string) bool { return strings.Contains(text, "default/deny-in, default/others") }) {
		t.Errorf("no warning in %q", s.Warnings)
	}

	w.Kubectl(t, "annotate", "service", "whereami", "service.beta.kubernetes.io/azure-load-balancer-tcp-idle-timeout=1000")
	eventually.Succeeds(t, time.Minute, func() error {
		problems := status(t, w).Problems
		if !slices.ContainsFunc(problems, func(text string) bool { return strings.HasPrefix(text, "service default/whereami: ") }) {
			return fmt.Errorf("no problem of the Service in %q", problems)
		}
		return nil
	})
	w.Kubectl(t, "annotate", "service", "whereami", "service.beta.kubernetes.io/azure-load-balancer-tcp-idle-timeout-")
	eventually.Succeeds(t, time.Minute, func() error {
		if problems := status(t, w).Problems; len(problems) > 0 {
			return fmt.Errorf("problems %q after the Service was mended", problems)
		}
		return nil
	})

	pod := strings.TrimSpace(w.Kubectl(t, "get", "pods", "-l", "app=whereami", "-o", "jsonpath={.items[0].metadata.name}"))
	walk := func(from, to string) string { return w.Run(t, "walk", "--name", w.Name, "--from", from, "--to", to) }
	received := walk("vm/testvm", "pod/"+pod+":80")
	if !strings.Contains(received, "NetworkPolicy default/deny-in is not enforced") || strings.Contains(received, "default/others") {
		t.Errorf("a policy about the receiver alone is to be said:\n%s", received)
	}
	file := filepath.Join(t.TempDir(), "x.pwcap.tar.gz")
	w.Run(t, "capture", "--name", w.Name, "-o", file)
	condition := regexp.MustCompile(`(?m)^.*NetworkPolicy .*$`)
	captured := w.Run(t, "walk", "--snapshot", file, "--from", "vm/testvm", "--to", "pod/"+pod+":80")
	if got, want := condition.FindAllString(captured, -1), condition.FindAllString(received, -1); !slices.Equal(got, want) {
		t.Errorf("a capture says %q, the lab %q", got, want)
	}
	if sent := walk("pod/"+pod, "vm/testvm:80"); strings.Contains(sent, "NetworkPolicy") {
		t.Errorf("no policy is about what the pod sends:\n%s", sent)
	}
	if metadata := walk("pod/"+pod, "169.254.169.254:80"); !strings.Contains(metadata, "delivered to 169.254.169.254:80") {
		t.Errorf("the metadata service:\n%s", metadata)
	}
}

// TestNodeOfToday: nodes with today's rules have those of AKS's node image of today, and the kernel agrees with walks that meet them.
func TestNodeOfToday(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte("{apiVersion: packetwalk.dev/v1alpha1, kind: Cluster}"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := freshFrom(t, "today", file)
	w.Kubectl(t, "apply", "-f", w.Example("azure-cni", "whereami.yaml"))
	w.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=1m")
	pod := strings.TrimSpace(w.Kubectl(t, "get", "pods", "-l", "app=whereami", "-o", "jsonpath={.items[0].metadata.name}"))
	rules := w.SSH(t, node, "iptables-save")
	const drops = "-A FORWARD -d 168.63.129.16/32 -p tcp -m tcp --dport 32526 -j DROP\n" +
		"-A FORWARD -d 168.63.129.16/32 -p tcp -m tcp --dport 80 -j DROP\n"
	if !strings.Contains(rules, drops) {
		t.Errorf("no rules %sin\n%s", drops, rules)
	}
	if strings.Contains(rules, "docker0") {
		t.Errorf("a rule of Docker's in\n%s", rules)
	}
	wire := w.Run(t, "walk", "--name", w.Name, "--live", "--from", "pod/"+pod, "--to", "168.63.129.16:80")
	if !strings.Contains(wire, "pods may not reach Azure's wire server, port 80") {
		t.Errorf("the walk does not name the rule:\n%s", wire)
	}
	dns := w.Run(t, "walk", "--name", w.Name, "--from", "pod/"+pod, "--to", "168.63.129.16:53", "--proto", "udp")
	if !strings.Contains(dns, "delivered to 168.63.129.16:53") {
		t.Errorf("DNS:\n%s", dns)
	}
	curl := func(host, patience string) error {
		_, err := w.Try(time.Minute, "ssh", "--name", w.Name, host, "--", "curl", "-sSf", "--max-time", patience,
			"http://168.63.129.16/machine/?comp=goalstate")
		return err
	}
	if err := curl("pod/default/"+pod, "3"); err == nil {
		t.Error("a pod reached the wire server")
	}
	if err := curl(node, "20"); err != nil {
		t.Errorf("the node does not reach the wire server: %v", err)
	}
}
