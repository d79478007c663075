package oracle

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register" // its flags
	"k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/kubernetes/cmd/kube-proxy/app"
	"k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	upstreamdefaults "k8s.io/kubernetes/pkg/proxy/apis/config/v1alpha1"

	"packetwalk.dev/internal/node/proxyconfig"
)

// fieldPaths adds the paths of all fields of a type, each as a file has it.
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
	theirs, ours := fieldPaths(nil, "", reflect.TypeFor[v1alpha1.KubeProxyConfiguration]()),
		fieldPaths(nil, "", reflect.TypeFor[proxyconfig.Configuration]())
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

// TestFlagsAreUpstreams: packetwalk-node's tests have each flag of kube-proxy's, with a value that it takes.
func TestFlagsAreUpstreams(t *testing.T) {
	text, err := os.ReadFile("../../cmd/packetwalk-node/testdata/kube-proxy-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(string(text))
	upstream := app.NewProxyCommand()
	upstream.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc) // and logs.AddFlags: as cli.Run does
	logs.AddFlags(upstream.PersistentFlags())
	if err := upstream.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	var theirs, ours []string
	upstream.Flags().VisitAll(func(f *pflag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			theirs = append(theirs, "--"+f.Name)
		}
	})
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		ours = append(ours, name)
	}
	slices.Sort(ours)
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("(-upstream +ours):\n%s", diff)
	}
}

// TestWrittenByUpstream: the files that kube-proxy writes of its flags ask for nothing that is not there.
func TestWrittenByUpstream(t *testing.T) {
	for _, mode := range []string{proxyconfig.ModeIPTables, proxyconfig.ModeNFTables} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		upstream, flags := app.NewOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
		upstream.AddFlags(flags)
		if err := errors.Join(flags.Parse([]string{"--proxy-mode=" + mode, "--write-config-to=" + path}), upstream.Complete(flags),
			upstream.Validate(), upstream.Run(t.Context())); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		ours, strange, err := proxyconfig.Read(text)
		if err != nil || len(strange) > 0 || len(ours.WithoutEffect()) > 0 {
			t.Errorf("mode %s: %v, strange %q, without effect %q:\n%s", mode, err, strange, ours.WithoutEffect(), text)
		}
	}
}

// TestSecondDocument: of several documents upstream reads the first, too, and says nothing.
func TestSecondDocument(t *testing.T) {
	const first = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"
	for _, text := range []string{first + "---\nmode: iptables\n", first + "---\na: [\n"} {
		object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ours, strange, err := proxyconfig.Read([]byte(text))
		if err != nil || len(strange) != 1 {
			t.Fatalf("%v, %v", strange, err)
		}
		if theirs := object.(*config.KubeProxyConfiguration); string(theirs.Mode) != ours.Mode {
			t.Errorf("%s: upstream has mode %s", text, theirs.Mode)
		}
	}
}
