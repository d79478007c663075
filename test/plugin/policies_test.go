package plugin

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// policies: a walk names the NetworkPolicies that select a pod on the way and that no rule enforces. Without the right to list them it says
// that they are not known, and goes on.
func policies(t *testing.T, p *plugin) {
	p.Kubectl(t, "apply", "-f", p.file(t, "policies.yaml", `
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny-in}, spec: {podSelector: {}, policyTypes: [Ingress]}}
`))
	defer p.Kubectl(t, "delete", "networkpolicy", "deny-in")
	walk := func(want, not string) {
		t.Helper()
		s := p.run(t, 0, "walk", "--from", "pod/one", "--to", "pod/two:80")
		if !strings.Contains(s.out, want) || strings.Contains(s.out, not) {
			t.Errorf("with %q, or without %q:\n%s%s", not, want, s.out, s.err)
		}
	}
	const unknown = "pod default/two: whether a NetworkPolicy selects it is not known"
	walk("pod default/two: NetworkPolicy default/deny-in is not enforced: node "+p.nodes[1], unknown)

	roles := p.client.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "packetwalk", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rules := role.Rules
	ofPolicies := func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "networkpolicies") }
	role.Rules = slices.DeleteFunc(slices.Clone(rules), ofPolicies)
	if role, err = roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	list := []string{"list", "networkpolicies.networking.k8s.io", "-A"}
	defer func() {
		role.Rules = rules
		if _, err := roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
		p.waitRight(t, true, list...)
	}()
	p.waitRight(t, false, list...)
	walk(unknown, "deny-in")
	walk(`cannot list resource "networkpolicies"`, "deny-in")
}
