package controlplane

import (
	"context"
	"fmt"

	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	client "k8s.io/client-go/kubernetes/typed/rbac/v1"

	"packetwalk.dev/internal/node/ipmasq"
)

// Bootstrap returns what the lab adds to upstream's default roles.
//
// One role for what a node agent reads beyond upstream's role for kube-proxy:
// the ip-masq-agent's ConfigMaps, by their names, which holds in every namespace and so makes only kube-system's of use. And upstream's own
// role for a kubelet's clients, bound to the API server's kubelet certificate. And cloud-provider-azure's role for the cloud controllers, as
// far as the service controller needs it.
func Bootstrap() ([]rbac.ClusterRole, []rbac.ClusterRoleBinding) {
	maps := rule("", []string{"configmaps"}, "get", "list", "watch")
	maps.ResourceNames = []string{ipmasq.UserConfigMap, ipmasq.ReconciledConfigMap}
	agent := rbac.ClusterRole{ObjectMeta: meta.ObjectMeta{Name: "packetwalk:node-agent"}, Rules: []rbac.PolicyRule{maps}}
	cloud := rbac.ClusterRole{ObjectMeta: meta.ObjectMeta{Name: "system:cloud-controller-manager"}, Rules: []rbac.PolicyRule{
		rule("", []string{"events"}, "create", "patch", "update"),
		rule("", []string{"nodes"}, rbac.VerbAll),
		rule("", []string{"nodes/status"}, "patch"),
		rule("", []string{"services", "services/status"}, "get", "list", "watch", "patch", "update"),
		rule("discovery.k8s.io", []string{"endpointslices"}, "get", "list", "watch"),
		rule("coordination.k8s.io", []string{"leases"}, "get", "create", "update"),
	}}
	return []rbac.ClusterRole{agent, cloud}, []rbac.ClusterRoleBinding{
		binding(cloud.Name, cloud.Name, rbac.UserKind, CloudControllerUser.Common),
		binding(agent.Name, agent.Name, rbac.UserKind, NodeAgentUser.Common),
		binding("packetwalk:kube-apiserver-to-kubelet", "system:kubelet-api-admin", rbac.UserKind, KubeletClientUser.Common),
	}
}

func rule(group string, resources []string, verbs ...string) rbac.PolicyRule {
	return rbac.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}

func binding(name, role, kind, subject string) rbac.ClusterRoleBinding {
	return rbac.ClusterRoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: name},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: kind, Name: subject}},
	}
}

// ApplyBootstrap brings the Bootstrap objects into the API; as admin, and as soon as the API server serves.
func ApplyBootstrap(ctx context.Context, api client.RbacV1Interface) error {
	roles, bindings := Bootstrap()
	for _, role := range roles {
		_, err := api.ClusterRoles().Create(ctx, &role, meta.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = api.ClusterRoles().Update(ctx, &role, meta.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("apply cluster role %s: %w", role.Name, err)
		}
	}
	for _, binding := range bindings {
		_, err := api.ClusterRoleBindings().Create(ctx, &binding, meta.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = api.ClusterRoleBindings().Update(ctx, &binding, meta.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("apply cluster role binding %s: %w", binding.Name, err)
		}
	}
	return nil
}
