package usercluster

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"packetwalk.dev/internal/capture"
)

// Rights returns what an administrator makes for who runs the plugin without being one: the namespace, which then stays, and roles with the
// least rights: a ClusterRole for what is read of the whole cluster, a Role in the namespace for what is made there, and one for the
// ip-masq-agent's ConfigMaps, those named among them. They are bound to no user.
//
// Who may make privileged pods in a namespace owns the nodes: these rights are as good as an administrator's.
func Rights(configMaps ...string) []runtime.Object {
	ns := namespace(Namespace, "")
	delete(ns.Labels, managedBy) // it is not ours to take away
	cluster := &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}}
	cluster.Name = "packetwalk"
	read := []string{"list"}
	cluster.Rules = []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes", "pods", "services"}, Verbs: read},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: read},
		{APIGroups: []string{"node.k8s.io"}, Resources: []string{"runtimeclasses"}, Verbs: read},
		{APIGroups: []string{"crd.projectcalico.org"}, Resources: []string{"ippools"}, Verbs: read},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{Namespace}, Verbs: []string{"get"}},
	}
	own := role(Namespace)
	own.Rules = []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, Verbs: []string{"create"}},
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create", "list", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"create", "get"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: read},
	}
	system := role("kube-system")
	configMaps = append(slices.Clone(capture.ConfigMapNames), configMaps...)
	system.Rules = []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: configMaps, Verbs: []string{"get"}},
	}
	return []runtime.Object{ns, cluster, own, system}
}

func role(namespace string) *rbacv1.Role {
	r := &rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"}}
	r.Name, r.Namespace = "packetwalk", namespace
	return r
}
