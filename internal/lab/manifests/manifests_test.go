package manifests

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	c, errs := cluster.Parse(nil, []byte("spec: {network: {serviceCIDR: 10.200.0.0/16, dnsServiceIP: 10.200.0.53}}"))
	if errs.Err() != nil {
		t.Fatal(errs)
	}
	docs, err := DNS(c)
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

// TestMetricsServerObjects: the objects have no field that Kubernetes does not know, and an image that exists.
func TestMetricsServerObjects(t *testing.T) {
	docs, err := MetricsServer()
	if err != nil {
		t.Fatal(err)
	}
	last := len(docs) - 1 // an APIService, whose type is no dependency
	if o, err := parse(docs[last]); err != nil || o.path != "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io" {
		t.Errorf("%v, %v", o, err)
	}
	deployment := strictObjects(t, docs[:last])["apps/v1/Deployment metrics-server"].(*appsv1.Deployment)
	image := deployment.Spec.Template.Spec.Containers[0].Image
	if a, err := app.Resolve(image); err != nil || a.Name != "metrics-server" || !strings.HasSuffix(image, ":"+metricsServerVersion) {
		t.Errorf("image %s: %v", image, err)
	}
	module, err := os.ReadFile("../../../controlplane/metrics/go.mod")
	if err != nil || !strings.Contains(string(module), "\tsigs.k8s.io/metrics-server "+metricsServerVersion+" ") {
		t.Errorf("another version is built: %v", err)
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
			"rbac.authorization.k8s.io/v1/RoleBinding":        &rbacv1.RoleBinding{},
			"networking.k8s.io/v1/IngressClass":               &networkingv1.IngressClass{},
			"apps/v1/DaemonSet":                               &appsv1.DaemonSet{},
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
	c, errs := cluster.Parse(nil, []byte("spec: {addons: [http_application_routing]}"))
	if errs.Err() != nil {
		t.Fatal(errs)
	}
	docs, err := HTTPRouting(c, "external-dns", "c2VjcmV0")
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
		onVirtualMachines(t, spec)
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

// onVirtualMachines: the pods stay off virtual nodes, whatever they tolerate.
func onVirtualMachines(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	want := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "kubernetes.azure.com/cluster", Operator: corev1.NodeSelectorOpExists},
			{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet", "simulated"}},
		}}},
	}}}
	if d := cmp.Diff(want, pod.Affinity); d != "" {
		t.Errorf("%s may run elsewhere than on virtual machines:\n%s", pod.Containers[0].Name, d)
	}
}

// TestIPMasqAgent: what each form has of AKS's names, and a configuration that comes through as it is.
func TestIPMasqAgent(t *testing.T) {
	for form, want := range map[string]string{
		"v1": "azure-ip-masq-agent-config ip-masq-agent EnsureExists v2.5.0 [azure-ip-masq-agent-config]",
		"v2": "azure-ip-masq-agent-config-reconciled ip-masq-agent-reconciled Reconcile v0.1.15 [azure-ip-masq-agent-config azure-ip-masq-agent-config-reconciled]",
	} {
		c, errs := cluster.Parse(nil, []byte("spec: {network: {ipMasqAgent: "+form+", nonMasqueradeCIDRs: [10.1.0.0/16, 10.2.0.0/16]}}"))
		if errs.Err() != nil {
			t.Fatal(errs)
		}
		configMap, daemonSet, err := IPMasqAgent(c)
		if err != nil {
			t.Fatal(err)
		}
		all := strictObjects(t, []string{configMap, daemonSet})
		pod := all["apps/v1/DaemonSet azure-ip-masq-agent"].(*appsv1.DaemonSet).Spec.Template.Spec
		onVirtualMachines(t, pod)
		_, version, _ := strings.Cut(pod.Containers[0].Image, ":")
		var read []string
		for _, s := range pod.Volumes[0].Projected.Sources {
			read = append(read, s.ConfigMap.Name)
			if !*s.ConfigMap.Optional {
				t.Errorf("ConfigMap %s must be there", s.ConfigMap.Name)
			}
		}
		for name, o := range all {
			m, ok := o.(*corev1.ConfigMap)
			if !ok {
				continue
			}
			for key, text := range m.Data {
				if got := fmt.Sprint(m.Name, " ", key, " ", m.Labels["addonmanager.kubernetes.io/mode"], " ", version, " ", read); got != want {
					t.Errorf("%s: got %s\nwant %s", name, got, want)
				}
				if !strings.Contains(text, "10.1.0.0/16") || !strings.Contains(text, "\n") {
					t.Errorf("%s: %q", name, text)
				}
			}
		}
	}
}

// TestDefaultPool: claim C7, and what kubectl apply left on it.
func TestDefaultPool(t *testing.T) {
	text, err := calicoPool(netip.MustParsePrefix("10.240.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	var pool struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal([]byte(text), &pool); err != nil {
		t.Fatal(err)
	}
	const want = `{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPool","metadata":{"annotations":{},"labels":{"addonmanager.kubernetes.io/mode":"Reconcile"},"name":"default-ipv4-ippool"},` +
		`"spec":{"blockSize":26,"cidr":"10.240.0.0/16","ipipMode":"Never","natOutgoing":true}}` + "\n" // to the article's letter
	if got := pool.Metadata.Annotations["kubectl.kubernetes.io/last-applied-configuration"]; got != want {
		t.Errorf("applied %s", got)
	}
}
