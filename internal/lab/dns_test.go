package lab

import (
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/pods/app"
)

// The objects of the cluster's DNS have no field that Kubernetes does not know, a kind that is applied, the configuration's address and an
// image that is there.
func TestDNSObjects(t *testing.T) {
	c, errs := cluster.Parse([]byte("spec: {network: {serviceCIDR: 10.200.0.0/16, dnsServiceIP: 10.200.0.53}}"))
	if errs.Err() != nil {
		t.Fatal(errs)
	}
	docs, err := dnsObjects(c)
	if err != nil {
		t.Fatal(err)
	}
	all := strictObjects(t, docs)
	service, deployment := all["v1/Service kube-dns"].(*corev1.Service), all["apps/v1/Deployment coredns"].(*appsv1.Deployment)
	if len(all) != 6 {
		t.Errorf("%d objects", len(all))
	}
	if service.Spec.ClusterIP != "10.200.0.53" {
		t.Errorf("kube-dns has %s", service.Spec.ClusterIP)
	}
	image := deployment.Spec.Template.Spec.Containers[0].Image
	if a, err := app.Resolve(image); err != nil || a.Name != "coredns" || !strings.HasSuffix(image, ":"+coreDNSVersion) {
		t.Errorf("image %s: %v", image, err)
	}
}

// strictObjects reads documents, none of which has a field that Kubernetes does not know or a kind that is not applied, by kind and name.
func strictObjects(t *testing.T, docs []string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, doc := range docs {
		var o struct {
			APIVersion, Kind string
			Metadata         struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		kind := o.APIVersion + "/" + o.Kind
		into, known := map[string]any{
			"v1/Service": &corev1.Service{}, "v1/Secret": &corev1.Secret{}, "apps/v1/Deployment": &appsv1.Deployment{},
			"v1/ServiceAccount": &corev1.ServiceAccount{}, "v1/ConfigMap": &corev1.ConfigMap{},
			"rbac.authorization.k8s.io/v1/ClusterRole":        &rbacv1.ClusterRole{},
			"rbac.authorization.k8s.io/v1/ClusterRoleBinding": &rbacv1.ClusterRoleBinding{},
			"networking.k8s.io/v1/IngressClass":               &networkingv1.IngressClass{},
		}[kind]
		if apiPaths[kind] == "" || !known {
			t.Fatalf("no path for %s", kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		all[kind+" "+o.Metadata.Name] = into
	}
	return all
}

// The addon's objects have AKS's names; each Deployment runs an image that is there, on virtual machines only, and its pods are what a
// Service selects.
func TestHTTPRoutingObjects(t *testing.T) {
	c, errs := cluster.Parse([]byte("spec: {addons: [http_application_routing]}"))
	if errs.Err() != nil {
		t.Fatal(errs)
	}
	docs, err := httpRoutingObjects(c, "c2VjcmV0")
	if err != nil {
		t.Fatal(err)
	}
	all := strictObjects(t, docs)
	const name = "addon-http-application-routing-"
	for deployment, image := range map[string]string{"nginx-ingress-controller": "ingress-nginx", "default-http-backend": "defaultbackend",
		"external-dns": "external-dns"} {
		d, ok := all["apps/v1/Deployment "+name+deployment].(*appsv1.Deployment)
		if !ok {
			t.Fatalf("no Deployment %s", deployment)
		}
		spec := d.Spec.Template.Spec
		if a, err := app.Resolve(spec.Containers[0].Image); err != nil || a.Name != image {
			t.Errorf("%s: image %s is %s, %v", deployment, spec.Containers[0].Image, a.Name, err)
		}
		if !reflect.DeepEqual(spec.Affinity, onVirtualMachines()) {
			t.Errorf("%s may run elsewhere than on virtual machines", deployment)
		}
	}
	for service, deployment := range map[string]string{"nginx-ingress": "nginx-ingress-controller",
		"default-http-backend": "default-http-backend"} {
		s, ok := all["v1/Service "+name+service].(*corev1.Service)
		if !ok {
			t.Fatalf("no Service %s", service)
		}
		if d := all["apps/v1/Deployment "+name+deployment].(*appsv1.Deployment); !reflect.DeepEqual(s.Spec.Selector, d.Spec.Template.Labels) {
			t.Errorf("%s selects %v", service, s.Spec.Selector)
		}
	}
	if !strings.Contains(strings.Join(docs, ""), "--domain-filter="+c.HTTPRoutingZone()) {
		t.Error("external-dns has another zone")
	}
}
