package chart

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite deploy/manifests")

const (
	dir       = "../../deploy/chart"
	manifests = "../../deploy/manifests"
	version   = "v1.35.8"
	namespace = "kube-system"
	release   = "packetwalk"
)

// plain are the values whose manifests are in the repository for those without Helm, and the release of each. A cluster may have all of
// them, so that two that have the same component are of two releases.
var plain = map[string]string{"service-proxy": release, "node": "packetwalk-masq"}

func load(t *testing.T) *chartv2.Chart {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sets returns the values in deploy/chart/ci, by name.
func sets(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "ci", "*-values.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	all := map[string]map[string]any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var values map[string]any
		if err := yaml.UnmarshalStrict(text, &values); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = values
	}
	return all
}

// render gives what "helm template" prints: the objects in the order in which Helm installs them.
func render(t *testing.T, values map[string]any) (string, error) {
	t.Helper()
	return renderAs(t, release, values)
}

func renderAs(t *testing.T, release string, values map[string]any) (string, error) {
	t.Helper()
	text, _, err := renderFiles(t, release, values)
	return text, err
}

// renderFiles renders the templates' files, too.
func renderFiles(t *testing.T, release string, values map[string]any) (text string, all map[string]string, err error) {
	t.Helper()
	kube, err := common.ParseKubeVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	c := load(t)
	caps := common.DefaultCapabilities.Copy()
	caps.KubeVersion = *kube
	top, err := chartutil.ToRenderValues(c, values, common.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true}, caps)
	if err != nil {
		return "", nil, err
	}
	files, err := engine.Engine{Strict: true}.RenderWithContext(t.Context(), c, top)
	if err != nil {
		return "", nil, err
	}
	all = maps.Clone(files)
	maps.DeleteFunc(files, func(name, text string) bool {
		return strings.HasSuffix(name, "NOTES.txt") || strings.HasSuffix(name, ".tpl") || strings.TrimSpace(text) == ""
	})
	hooks, sorted, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil || len(hooks) > 0 {
		t.Fatalf("%d hooks, %v", len(hooks), err)
	}
	var b strings.Builder
	for _, m := range sorted {
		fmt.Fprintf(&b, "---\n%s\n", strings.TrimSpace(m.Content))
	}
	return b.String(), all, nil
}

// objects decodes what was rendered, each into its type; fields that this has not are an error, and so are two of one name.
func objects(t *testing.T, text string) (all []runtime.Object) {
	t.Helper()
	utilruntime.Must(monitoringv1.AddToScheme(scheme.Scheme))
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	for part := range strings.SplitSeq(text, "---\n") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		o, _, err := strict.Decode([]byte(part), nil, nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, part)
			continue
		}
		all = append(all, o)
	}
	return all
}

// TestObjects: what each set of values renders is strictly objects of Kubernetes'.
func TestObjects(t *testing.T) {
	for name, values := range sets(t) {
		t.Run(name, func(t *testing.T) {
			text, err := render(t, values)
			if err != nil {
				t.Fatal(err)
			}
			all := objects(t, text)
			if (len(all) == 0) != (name == "off") {
				t.Errorf("%d objects", len(all))
			}
			for _, o := range all {
				if d, ok := o.(*appsv1.DaemonSet); ok {
					daemonSet(t, d, all)
				}
			}
		})
	}
}

// daemonSet: its pods are those that its selector means, and what they name is there, too.
func daemonSet(t *testing.T, d *appsv1.DaemonSet, all []runtime.Object) {
	pod := d.Spec.Template.Spec
	for key, value := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[key] != value {
			t.Errorf("%s: label %s is %q, the selector's %q", d.Name, key, d.Spec.Template.Labels[key], value)
		}
	}
	has := func(is func(runtime.Object) bool) bool { return slices.ContainsFunc(all, is) }
	if !has(func(o runtime.Object) bool {
		a, ok := o.(*corev1.ServiceAccount)
		return ok && a.Name == pod.ServiceAccountName
	}) {
		t.Errorf("%s: no service account %q", d.Name, pod.ServiceAccountName)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if m := v.ConfigMap; m != nil && !has(func(o runtime.Object) bool { c, ok := o.(*corev1.ConfigMap); return ok && c.Name == m.Name }) {
			t.Errorf("%s: no ConfigMap %q", d.Name, m.Name)
		}
	}
	for _, c := range pod.Containers {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s: no volume %q", d.Name, m.Name)
			}
		}
		if s := c.SecurityContext; s.Privileged != nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || s.Capabilities.Drop[0] != "ALL" {
			t.Errorf("%s: %+v", d.Name, s)
		}
		if c.ReadinessProbe == nil {
			t.Errorf("%s: no readiness probe", d.Name)
		}
		// At a port of the node another service proxy may answer. Probes in the pod name its UID.
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			if p != nil && p.Exec == nil {
				t.Errorf("%s: a probe asks at a port", d.Name)
			}
		}
		uid := func(e corev1.EnvVar) bool {
			return e.Name == "POD_UID" && e.ValueFrom.FieldRef.FieldPath == "metadata.uid"
		}
		if !slices.ContainsFunc(c.Env, uid) {
			t.Errorf("%s: no POD_UID", d.Name)
		}
	}
	for _, o := range all {
		if m, ok := o.(*monitoringv1.ServiceMonitor); ok && d.Spec.Template.Labels["app.kubernetes.io/component"] == "node" {
			for key, value := range m.Spec.Selector.MatchLabels {
				if d.Spec.Template.Labels[key] != value {
					t.Errorf("the ServiceMonitor selects %s=%s", key, value)
				}
			}
		}
	}
}

// TestManifests: the plain manifests are what the chart renders, below the comment of their values.
func TestManifests(t *testing.T) {
	for name, release := range plain {
		values, err := os.ReadFile(filepath.Join(dir, "ci", name+"-values.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := renderAs(t, release, sets(t)[name])
		if err != nil {
			t.Fatal(err)
		}
		comment := regexp.MustCompile(`^(#.*\n)+`).Find(values)
		want := fmt.Sprintf("%s#\n# Rendered from deploy/chart with ci/%s-values.yaml, as release %s; make manifests writes it.\n%s",
			comment, name, release, text)
		file := filepath.Join(manifests, name+".yaml")
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, []byte(want)) {
			t.Errorf("%s is not what the chart renders (%v); make manifests writes it", file, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(manifests, "*.yaml"))
	if err != nil || len(files) != len(plain) {
		t.Errorf("%v, %v", files, err)
	}
}

// TestManifestsTogether: applied one after the other, no manifest takes the place of another's object, nor selects another's pods.
func TestManifestsTogether(t *testing.T) {
	of := map[string]string{}
	for name := range plain {
		text, err := os.ReadFile(filepath.Join(manifests, name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ = bytes.Cut(text, []byte("---\n")) // the comment
		for _, o := range objects(t, string(text)) {
			keys := []string{fmt.Sprintf("%T %s", o, o.(metav1.Object).GetName())}
			if d, ok := o.(*appsv1.DaemonSet); ok {
				keys = append(keys, "the pods of "+metav1.FormatLabelSelector(d.Spec.Selector))
			}
			for _, key := range keys {
				if of[key] != "" {
					t.Errorf("%s and %s both have %s", of[key], name, key)
				}
				of[key] = name
			}
		}
	}
}

// TestLint: as "helm lint" with each set of values.
func TestLint(t *testing.T) {
	for name, values := range sets(t) {
		for _, m := range lint.RunAll(dir, values, namespace).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}

// complete are the values without which nothing can be installed.
const complete = "image: {tag: v1}\napiServer: https://api.example\n"

func parse(t *testing.T, text string) (values map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// TestMasqConfig: pods keep the last configuration exactly where the chart makes its ConfigMap, which it may take away under them.
func TestMasqConfig(t *testing.T) {
	const on = "serviceProxy: {enabled: false}\n"
	for text, own := range map[string]bool{
		on + "ipMasqAgent: {enabled: true, config: {masqLinkLocal: true}}": true,
		on + "ipMasqAgent: {enabled: true, configMaps: [mine]}":            false,
		on + "ipMasqAgent: {enabled: true}":                                false,
	} {
		made, kept := false, false
		for _, o := range objects(t, must(t, text)) {
			switch o := o.(type) {
			case *corev1.ConfigMap:
				made = made || o.Name == "packetwalk-ip-masq"
			case *appsv1.DaemonSet:
				kept = slices.Contains(o.Spec.Template.Spec.Containers[0].Command, "--ip-masq-keep-config")
			}
		}
		if made != own || kept != own {
			t.Errorf("%s: a ConfigMap %v, its configuration kept %v, want %v", text, made, kept, own)
		}
	}
}

// must renders values as a file has them.
func must(t *testing.T, values string) string {
	t.Helper()
	v := map[string]any{"image": map[string]any{"tag": "v1"}}
	maps.Copy(v, parse(t, values))
	text, err := render(t, v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestSELinux: the DaemonSet's pods are of the domain that is asked for, and otherwise of the runtime's.
func TestSELinux(t *testing.T) {
	for text, want := range map[string]string{complete: "", complete + "seLinuxOptions: {type: spc_t}": "spc_t"} {
		seen := 0
		for _, o := range objects(t, must(t, text)) {
			d, ok := o.(*appsv1.DaemonSet)
			if !ok {
				continue
			}
			seen++
			s := d.Spec.Template.Spec.SecurityContext
			if want == "" && s != nil || want != "" && (s == nil || s.SELinuxOptions.Type != want) {
				t.Errorf("%s: %s has %+v", text, d.Name, s)
			}
		}
		if seen != 1 {
			t.Errorf("%s: %d DaemonSets", text, seen)
		}
	}
}

// TestMetricsPort: beside a service proxy the agent has another port, and flag and Service have the same.
func TestMetricsPort(t *testing.T) {
	const on = "{metrics: {enabled: true}, apiServer: 'https://api.example'}"
	const off = "{metrics: {enabled: true}, serviceProxy: {enabled: false}, ipMasqAgent: {enabled: true}}"
	for _, c := range []struct {
		text string
		port int32
	}{
		{on, 10249},
		{off, 10349},
		{strings.Replace(on, "true}", "true, port: 7000}", 1), 7000},
		{strings.Replace(off, "true}", "true, port: 10249}", 1), 10249},
	} {
		text := must(t, c.text)
		if address := fmt.Sprintf("0.0.0.0:%d", c.port); strings.Count(text, address) != 1 {
			t.Errorf("%s: not once %s in\n%s", c.text, address, text)
		}
		seen := 0
		for _, o := range objects(t, text) {
			if s, ok := o.(*corev1.Service); ok {
				seen++
				if got := s.Spec.Ports[0].Port; got != c.port {
					t.Errorf("%s: the Service has port %d", c.text, got)
				}
			}
		}
		if seen != 1 {
			t.Errorf("%s: %d Services, want 1", c.text, seen)
		}
	}
}

// TestRights: who does not use a part has no rights for it.
func TestRights(t *testing.T) {
	rights := func(values string) (all []string) {
		for _, o := range objects(t, must(t, values)) {
			var rules []rbacv1.PolicyRule
			switch r := o.(type) {
			case *rbacv1.ClusterRole:
				rules = r.Rules
			case *rbacv1.Role:
				rules = r.Rules
			}
			for _, r := range rules {
				all = append(all, fmt.Sprint(r.Resources, r.ResourceNames, r.Verbs))
			}
		}
		slices.Sort(all)
		return all
	}
	const off, api = "serviceProxy: {enabled: false}\n", "apiServer: https://api.example\n"
	for values, more := range map[string][]string{
		api: {"[servicecidrs] [] [list watch]", "[daemonsets] [packetwalk-node] [get list watch]"},
		api + "serviceProxy: {backend: iptables}":                         {"[daemonsets] [packetwalk-node] [get list watch]"},
		api + "serviceProxy: {backend: iptables, cleanupOnDelete: false}": nil,
		off + "ipMasqAgent: {enabled: true, configMaps: [mine]}":          {"[configmaps] [mine] [get list watch]"},
	} {
		want := append([]string{"[events] [] [create]"}, more...)
		if strings.HasPrefix(values, api) {
			want = append(want, "[endpointslices] [] [list watch]", "[services nodes] [] [list watch]", "[pods/status] [] [patch]")
		}
		slices.Sort(want)
		if got := rights(values); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", values, got, want)
		}
	}
}

// daemonSets renders values and returns the DaemonSets, by component.
func daemonSets(t *testing.T, values string) map[string]*appsv1.DaemonSet {
	t.Helper()
	all := map[string]*appsv1.DaemonSet{}
	for _, o := range objects(t, must(t, values)) {
		if d, ok := o.(*appsv1.DaemonSet); ok {
			all[d.Labels["app.kubernetes.io/component"]] = d
		}
	}
	return all
}

// proxyConfig returns kube-proxy's file that values render.
func proxyConfig(t *testing.T, values string) string {
	t.Helper()
	for _, o := range objects(t, must(t, values)) {
		if c, ok := o.(*corev1.ConfigMap); ok && c.Data["config.conf"] != "" {
			return c.Data["config.conf"]
		}
	}
	t.Fatalf("%s: no config.conf", values)
	return ""
}
