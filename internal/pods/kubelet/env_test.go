package kubelet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/pods/beneath"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/podspec"
)

// fakeSource has one ConfigMap and one Secret, both named conf.
type fakeSource map[string]string

func (s fakeSource) data(_ string, o podspec.Object, binary bool) (map[string][]byte, error) {
	if o.Name != "conf" {
		return nil, fmt.Errorf("%s %q not found", o.Kind, o.Name)
	}
	if o.Kind == podspec.Secret {
		return map[string][]byte{"password": []byte("hunter2")}, nil
	}
	return podspec.ConfigMapData(&corev1.ConfigMap{Data: s, BinaryData: map[string][]byte{"bin": {0, 1}}}, binary), nil
}

func local(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func service(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func TestEnvironment(t *testing.T) {
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	res := func(name, divisor string) *corev1.EnvVarSource {
		f := &corev1.ResourceFieldSelector{Resource: name}
		if divisor != "" {
			f.Divisor = quantity(divisor)
		}
		return &corev1.EnvVarSource{ResourceFieldRef: f}
	}
	c := &corev1.Container{Name: "c",
		EnvFrom: []corev1.EnvFromSource{
			{Prefix: "CM_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("conf")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("nosuch"), Optional: new(true)}},
		},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": quantity("250m"), "memory": quantity("64Mi")}},
		Env: []corev1.EnvVar{
			{Name: "NAME", ValueFrom: field("metadata.name")},
			{Name: "LABEL", ValueFrom: field("metadata.labels['app']")},
			{Name: "IP", ValueFrom: field("status.podIP")},
			{Name: "HOST", ValueFrom: field("status.hostIP")},
			{Name: "NODE", ValueFrom: field("spec.nodeName")},
			{Name: "CPU", ValueFrom: res("requests.cpu", "")},
			{Name: "MILLI", ValueFrom: res("requests.cpu", "1m")},
			{Name: "MEM", ValueFrom: res("requests.memory", "1Mi")},
			{Name: "LIMIT", ValueFrom: res("limits.cpu", "")},
			{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local("conf"),
				Key: "password"}}},
			{Name: "NONE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local("conf"),
				Key: "x", Optional: new(true)}}},
			{Name: "URL", Value: "http://$(IP):$(WEB_SERVICE_PORT)/$(NOSUCH)?$$(IP)"},
			{Name: "CM_a", Value: "mine"},
		}}
	pod := testPod("web", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
	f := podFacts{pod: pod, hostIP: "10.0.0.1", podIPs: []string{"10.1.0.5"}, allocatable: corev1.ResourceList{"cpu": quantity("4")}}
	services := []*corev1.Service{
		service("default", "kubernetes", "10.2.0.1", corev1.ServicePort{Name: "https", Port: 443}),
		service("default", "web", "10.2.0.2", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}),
		service("default", "headless", "None", corev1.ServicePort{Port: 80}),
		service("other", "hidden", "10.2.0.3", corev1.ServicePort{Port: 80}),
	}
	got, err := environment(c, f, services, fakeSource{"a": "1", "b": "2"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"CM_b=2",
		"KUBERNETES_PORT=tcp://10.2.0.1:443", "KUBERNETES_PORT_443_TCP=tcp://10.2.0.1:443", "KUBERNETES_PORT_443_TCP_ADDR=10.2.0.1",
		"KUBERNETES_PORT_443_TCP_PORT=443", "KUBERNETES_PORT_443_TCP_PROTO=tcp", "KUBERNETES_SERVICE_HOST=10.2.0.1",
		"KUBERNETES_SERVICE_PORT=443",
		"KUBERNETES_SERVICE_PORT_HTTPS=443",
		"WEB_PORT=tcp://10.2.0.2:80", "WEB_PORT_80_TCP=tcp://10.2.0.2:80", "WEB_PORT_80_TCP_ADDR=10.2.0.2", "WEB_PORT_80_TCP_PORT=80",
		"WEB_PORT_80_TCP_PROTO=tcp", "WEB_SERVICE_HOST=10.2.0.2", "WEB_SERVICE_PORT=80",
		"NAME=web", "LABEL=web", "IP=10.1.0.5", "HOST=10.0.0.1", "NODE=node-0", "CPU=1", "MILLI=250", "MEM=64", "LIMIT=4", "PASSWORD=hunter2",
		"URL=http://10.1.0.5:80/$(NOSUCH)?$(IP)", "CM_a=mine",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	pod.Spec.EnableServiceLinks = new(false)
	got, _ = environment(&corev1.Container{}, podFacts{pod: pod}, services, fakeSource{})
	if slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "WEB_") }) ||
		!slices.Contains(got, "KUBERNETES_SERVICE_HOST=10.2.0.1") {
		t.Errorf("without service links: %v", got)
	}
	c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("nosuch")}}}
	if _, err := environment(c, f, nil, fakeSource{}); err == nil || !strings.Contains(err.Error(), `"nosuch" not found`) {
		t.Errorf("error %v", err)
	}
}

func TestResolvConf(t *testing.T) {
	r := podspec.Resolver{Cluster: netip.MustParseAddr("10.2.0.10"), Domain: "cluster.local", Node: netip.MustParseAddr("168.63.129.16")}
	value := "2"
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"cluster first": {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst},
			"search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.2.0.10\noptions ndots:5\n"},
		"host network": {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: true}, "nameserver 168.63.129.16\n"},
		"host network with cluster": {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet, HostNetwork: true},
			"search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.2.0.10\noptions ndots:5\n"},
		"default": {corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, "nameserver 168.63.129.16\n"},
		"none": {corev1.PodSpec{DNSPolicy: corev1.DNSNone,
			DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{"x.y"}}},
			"search x.y\nnameserver 1.1.1.1\n"},
		"merged": {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, DNSConfig: &corev1.PodDNSConfig{Searches: []string{"x.y", "cluster.local"},
			Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &value}, {Name: "use-vc"}}}},
			"search default.svc.cluster.local svc.cluster.local cluster.local x.y\nnameserver 10.2.0.10\noptions ndots:2 use-vc\n"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: tc.spec}
			if d := cmp.Diff(tc.want, string(resolvConf(pod, r))); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 62) + "-" + "tail"
	for _, tc := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{testPod("web"), "web"},
		{testPod("web", func(p *corev1.Pod) { p.Spec.Hostname = "www" }), "www"},
		{testPod("web", func(p *corev1.Pod) { p.Spec.HostNetwork = true }), "node"},
		{testPod(long), strings.Repeat("a", 62)},
		{testPod("web", func(p *corev1.Pod) { p.Spec.SetHostnameAsFQDN = new(true) }), "web"},
		{testPod("web", func(p *corev1.Pod) { p.Spec.SetHostnameAsFQDN, p.Spec.Subdomain = new(true), "sub" }),
			"web.sub.default.svc.cluster.local"},
		{testPod("web", func(p *corev1.Pod) { p.Spec.HostnameOverride, p.Spec.HostNetwork = new("other"), true }), "other"},
	} {
		if got := hostname(tc.pod, "node", "cluster.local"); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

func TestThreshold(t *testing.T) {
	for _, tc := range []struct {
		success, failure int32
		results, want    string // + good, - bad; v a verdict, . none
	}{
		{1, 3, "+--+---", "v..v..v"},
		{2, 1, "+-++-", ".v.vv"},
		{0, 0, "-+", "vv"},
	} {
		th := newThreshold(&corev1.Probe{SuccessThreshold: tc.success, FailureThreshold: tc.failure})
		var got strings.Builder
		for _, r := range tc.results {
			if th.add(r == '+') {
				got.WriteByte('v')
			} else {
				got.WriteByte('.')
			}
		}
		if got.String() != tc.want {
			t.Errorf("%+v: %s", tc, got.String())
		}
	}
}

// TestMountPoints: the place of a volume below one of files is made, and stays when the files change.
func TestMountPoints(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v")
	write := func(text string) {
		t.Helper()
		if err := beneath.WriteFiles(dir, []beneath.File{{Name: "a", Data: []byte(text), Mode: 0o600}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{VolumeMounts: []corev1.VolumeMount{
		{Name: "v", MountPath: "/etc/app"}, {Name: "w", MountPath: "/etc/app/more/deep"}, {Name: "x", MountPath: "/etc/application"},
		{Name: "y", MountPath: "/etc/app/file", SubPath: "f"},
	}}}}}
	if err := makeMountPoints(dir, "v", pod); err != nil {
		t.Fatal(err)
	}
	write("2")
	var names []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") {
			names = append(names, e.Name())
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "more/deep")); err != nil || !st.IsDir() || !slices.Equal(names, []string{"a", "more"}) {
		t.Errorf("%v: %v", names, err)
	}
}

// newDistribution makes the root of a small one, its links as Debian's.
func newDistribution(t *testing.T) (base string) {
	t.Helper()
	base = t.TempDir()
	for _, name := range []string{"usr/bin/env", "usr/share/zoneinfo/UTC", "usr/lib/x", "etc/services", "etc/passwd", "etc/ssl/certs/x.pem"} {
		path := filepath.Join(base, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"bin": "usr/bin", "etc/localtime": "/usr/share/zoneinfo/UTC",
		"usr/out": "/../../../etc/shadow"} {
		if err := os.Symlink(target, filepath.Join(base, name)); err != nil {
			t.Fatal(err)
		}
	}
	return base
}

// TestHostPathLeavesTheMachineAlone: a hostPath is of the node's own files, or the distribution's that containers have.
func TestHostPathLeavesTheMachineAlone(t *testing.T) {
	root, base := filepath.Join(t.TempDir(), "rootfs"), newDistribution(t)
	kind := func(k corev1.HostPathType) *corev1.HostPathType { return &k }
	machine := t.TempDir()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tc := range []struct {
		path     string
		kind     *corev1.HostPathType
		of       string // what of the distribution it is; "" for the node's own
		mustFail bool
	}{
		{path: "/"}, {path: "/", kind: kind(corev1.HostPathDirectory)},
		{path: "/usr", of: "usr"}, {path: "/usr/share/../lib", kind: kind(corev1.HostPathDirectory), of: "usr/lib"},
		{path: "/usr/bin/env", kind: kind(corev1.HostPathFile), of: "usr/bin/env"},
		{path: "/etc/services", of: "etc/services"}, {path: "/etc/ssl/certs", of: "etc/ssl/certs"},
		{path: "/etc/localtime", kind: kind(corev1.HostPathFile), of: "usr/share/zoneinfo/UTC"},
		{path: "/etc/services", kind: kind(corev1.HostPathDirectory), mustFail: true},
		{path: "/usr/lib/new", kind: kind(corev1.HostPathDirectoryOrCreate)}, {path: "/lib/modules"},
		{path: "/bin/env", kind: kind(corev1.HostPathFile), of: "usr/bin/env"},
		{path: "/bin/bash", kind: kind(corev1.HostPathFile), mustFail: true},
		{path: "/usr/nosuch"}, {path: "/usr/neither", kind: kind(corev1.HostPathDirectory), mustFail: true},
		{path: "/usr/out", kind: kind(corev1.HostPathFile), mustFail: true},
		{path: machine}, {path: machine + "/file", kind: kind(corev1.HostPathFileOrCreate)},
		{path: machine + "/sub", kind: kind(corev1.HostPathDirectory), mustFail: true},
		{path: "/etc/shadow", kind: kind(corev1.HostPathFile), mustFail: true},
		{path: "/etc/passwd", kind: kind(corev1.HostPathFile), mustFail: true},
		{path: "/etc/ssl/private"}, {path: "/etc/ssl"}, {path: "/etc"}, {path: "/etc/ssh"}, {path: "/opt"}, {path: "/boot"}, {path: "/home"},
		{path: "/root"},
		{path: "/../../etc/x"}, {path: "/run"}, {path: "/var/run"}, {path: "/run/packetwalk"}, {path: "/var/run/docker.sock"}, {path: "/var"},
		{path: "/tmp"},
		{path: "/proc"}, {path: "/proc/1/root/usr"}, {path: "/dev"}, {path: "/sys"}, {path: "/usr/../etc/ssh"},
		{path: socket, kind: kind(corev1.HostPathSocket), mustFail: true}, {path: socket},
	} {
		v, err := hostPath(root, base, &corev1.HostPathVolumeSource{Path: tc.path, Type: tc.kind})
		if (err != nil) != tc.mustFail {
			t.Errorf("%+v: %v", tc, err)
		}
		want := volume{source: root, beneath: []string{"." + filepath.Clean("/"+tc.path)}}
		if tc.path == "/" {
			want.base = base
		}
		if tc.of != "" {
			want = volume{source: base, beneath: []string{tc.of}, readOnly: true}
		}
		if d := cmp.Diff(want, v, cmp.AllowUnexported(volume{})); err == nil && d != "" {
			t.Errorf("%+v: %s", tc, d)
		}
	}
	if left, _ := os.ReadDir(machine); len(left) != 0 {
		t.Errorf("the machine has %v", left)
	}
}

// TestLinksDoNotLeadToTheMachine: pods write into the node's own files and into their volumes, links too. Neither a hostPath nor a subPath
// follows one out of there, or makes something behind it.
func TestLinksDoNotLeadToTheMachine(t *testing.T) {
	root, machine, data, base := t.TempDir(), t.TempDir(), t.TempDir(), newDistribution(t)
	for _, dir := range []string{root, data} {
		for name, target := range map[string]string{"out": machine, "up": "../../../../../../.." + machine, "dangling": machine + "/made",
			"in": "real"} {
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(dir, "real"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../real", filepath.Join(dir, "real/beside")); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []corev1.HostPathType{corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathFileOrCreate} {
		for _, path := range []string{"/out", "/up", "/dangling", "/out/new", "/up/new"} {
			if v, err := hostPath(root, base, &corev1.HostPathVolumeSource{Path: path, Type: &kind}); err == nil {
				t.Errorf("hostPath %s %q: %+v", path, kind, v)
			}
		}
	}
	node, err := hostPath(root, base, &corev1.HostPathVolumeSource{Path: "/in"})
	if err != nil || node.readOnly {
		t.Errorf("a link among the node's own files: %+v, %v", node, err)
	}
	sub := func(v volume, path string) (container.Mount, error) {
		c := &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: path}}}
		list, err := mounts(c, map[string]volume{"v": v}, nil)
		if err != nil {
			return container.Mount{}, err
		}
		return list[0], nil
	}
	for _, readOnly := range []bool{false, true} {
		for _, path := range []string{"out", "up", "dangling", "out/new", "up/new", "../real", "/real"} {
			if m, err := sub(volume{source: data, readOnly: readOnly}, path); err == nil {
				t.Errorf("subPath %s: %+v", path, m)
			}
		}
		want := container.Mount{Source: data, Beneath: []string{"in"}, Destination: "/v", ReadOnly: readOnly}
		if m, err := sub(volume{source: data, readOnly: readOnly}, "in"); err != nil || cmp.Diff(want, m) != "" {
			t.Errorf("subPath by a link within the volume: %+v, %v", m, err)
		}
	}
	if _, err := sub(node, "beside"); err == nil { // it is in the node's tree, and not in the volume
		t.Error("a subPath leads out of its volume")
	}
	if _, err := sub(volume{source: data}, "in/new/deep"); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(data, "real/new/deep")); err != nil || !info.IsDir() {
		t.Errorf("a subPath that is made: %v, %v", info, err)
	}
	if left, _ := os.ReadDir(machine); len(left) != 0 {
		t.Errorf("the machine has %v", left)
	}
}

func TestSecurityContext(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	var s container.Spec
	err := secure(&s, &corev1.PodSecurityContext{RunAsUser: id(1), RunAsGroup: id(2), FSGroup: id(3), SupplementalGroups: []int64{4},
		RunAsNonRoot: new(true)},
		&corev1.SecurityContext{RunAsUser: id(5), AllowPrivilegeEscalation: new(false), Privileged: new(false),
			Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}}})
	want := container.Spec{UID: id(5), GID: id(2), Groups: []int64{3, 4}, NoNewPrivs: true, AddCaps: []string{"NET_ADMIN"},
		DropCaps: []string{"ALL"}}
	if d := cmp.Diff(want, s); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	if err := secure(&s, &corev1.PodSecurityContext{RunAsNonRoot: new(true)}, nil); err == nil {
		t.Error("root was let in")
	}
}
