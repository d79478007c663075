package lab

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/app"
	"packetwalk.dev/internal/cluster"
)

// The objects of the cluster's DNS have no field that Kubernetes does not know, a kind that is applied, the configuration's address and an image that is there.
func TestDNSObjects(t *testing.T) {
	c, errs := cluster.Parse([]byte("spec: {network: {serviceCIDR: 10.200.0.0/16, dnsServiceIP: 10.200.0.53}}"))
	if errs.Err() != nil {
		t.Fatal(errs)
	}
	docs, err := dnsObjects(c)
	if err != nil {
		t.Fatal(err)
	}
	var service corev1.Service
	var deployment appsv1.Deployment
	into := map[string]any{
		"v1/Service": &service, "apps/v1/Deployment": &deployment, "v1/ServiceAccount": &corev1.ServiceAccount{}, "v1/ConfigMap": &corev1.ConfigMap{},
		"rbac.authorization.k8s.io/v1/ClusterRole": &rbacv1.ClusterRole{}, "rbac.authorization.k8s.io/v1/ClusterRoleBinding": &rbacv1.ClusterRoleBinding{},
	}
	for _, doc := range docs {
		var kind struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		name := kind.APIVersion + "/" + kind.Kind
		if apiPaths[name] == "" || into[name] == nil {
			t.Fatalf("no path for %s", name)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), into[name]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		delete(into, name)
	}
	if len(into) > 0 {
		t.Errorf("missing: %v", into)
	}
	if service.Spec.ClusterIP != "10.200.0.53" {
		t.Errorf("kube-dns has %s", service.Spec.ClusterIP)
	}
	image := deployment.Spec.Template.Spec.Containers[0].Image
	if a, err := app.Resolve(image); err != nil || a.Name != "coredns" || !strings.HasSuffix(image, ":"+coreDNSVersion) {
		t.Errorf("image %s: %v", image, err)
	}
}
