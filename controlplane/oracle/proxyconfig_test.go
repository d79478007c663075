package oracle

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-proxy/config/v1alpha1"
	upstreamdefaults "k8s.io/kubernetes/pkg/proxy/apis/config/v1alpha1"

	"packetwalk.dev/internal/node/proxyconfig"
)

// fieldPaths adds the paths of all fields of upstream's type.
func fieldPaths(paths []string, path string, t reflect.Type) []string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	marshaler := reflect.TypeFor[json.Marshaler]()
	if t.Kind() != reflect.Struct || t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
		return append(paths, path)
	}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" && strings.Contains(options, "inline") {
			paths = fieldPaths(paths, path, t.Field(i).Type)
		} else if name != "-" && name != "" {
			paths = fieldPaths(paths, strings.TrimPrefix(path+"."+name, "."), t.Field(i).Type)
		}
	}
	return paths
}

// TestConfigurationHasUpstreamsFields: no field of upstream's is unknown, and none of ours is of our own making.
func TestConfigurationHasUpstreamsFields(t *testing.T) {
	theirs, ours := fieldPaths(nil, "", reflect.TypeFor[v1alpha1.KubeProxyConfiguration]()), proxyconfig.Paths()
	within := func(paths []string, path string) bool {
		return slices.ContainsFunc(paths, func(p string) bool { return path == p || strings.HasPrefix(path, p+".") })
	}
	for _, path := range theirs {
		if !within(ours, path) {
			t.Errorf("no field %s", path)
		}
	}
	for _, path := range ours {
		if !within(theirs, path) && !slices.ContainsFunc(theirs, func(p string) bool { return strings.HasPrefix(p, path+".") }) {
			t.Errorf("upstream has no field %s", path)
		}
	}
}

// TestConfigurationHasUpstreamsDefaults: but for the least time between syncs with nftables, and what has no effect here.
func TestConfigurationHasUpstreamsDefaults(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, text := range []string{
		"", "bindAddress: 10.0.0.9\nmode: iptables\n", "bindAddress: fd00::9\nhealthzBindAddress: fd00::1\nmetricsBindAddress: '0.0.0.0'\n",
		"metricsBindAddress: 0.0.0.0:10249\nhealthzBindAddress: '[::]:1'\nconntrack: {maxPerCore: 0, min: 1}\noomScoreAdj: 0\n",
		"iptables: {minSyncPeriod: 0s, syncPeriod: 1m, masqueradeBit: 0, localhostNodePorts: false}\nclientConnection: {qps: 2, burst: 3}\n",
	} {
		ours, strange, err := proxyconfig.Read([]byte(head + text))
		if err != nil || len(strange) > 0 {
			t.Fatalf("%s: %v, %v", text, strange, err)
		}
		written, err := json.Marshal(ours)
		if err != nil {
			t.Fatal(err)
		}
		var theirs v1alpha1.KubeProxyConfiguration
		if err := json.Unmarshal(written, &theirs); err != nil {
			t.Fatal(err)
		}
		upstreamdefaults.SetDefaults_KubeProxyConfiguration(&theirs)
		ours.Default()
		if written, err = json.Marshal(theirs); err != nil {
			t.Fatal(err)
		}
		want := &proxyconfig.Configuration{}
		if err := json.Unmarshal(written, want); err != nil {
			t.Fatal(err)
		}
		// kube-proxy fills in the modes later (cmd/kube-proxy/app/server_linux.go, platformApplyDefaults).
		want.Mode, want.DetectLocalMode = proxyconfig.ModeIPTables, proxyconfig.LocalClusterCIDR
		want.NFTables.MinSyncPeriod = ours.NFTables.MinSyncPeriod
		want.Logging, want.ConfigSyncPeriod, want.IPVS.SyncPeriod = ours.Logging, ours.ConfigSyncPeriod, ours.IPVS.SyncPeriod
		want.ClientConnection.ContentType, want.FeatureGates = ours.ClientConnection.ContentType, ours.FeatureGates
		if diff := cmp.Diff(want, ours); diff != "" {
			t.Errorf("%s(-upstream +ours):\n%s", text, diff)
		}
	}
}
