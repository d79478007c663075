package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

func mustParse(t *testing.T, args ...string) *command {
	t.Helper()
	c, err := parse(args)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return c
}

func TestFlags(t *testing.T) {
	o := mustParse(t,
		"--kubeconfig=/k", "--hostname-override=n", "--cluster-cidr=10.1.0.0/16,fd00::/64", "--ip-families=IPv4,IPv6", "--proxy-rules=1.11",
		"--proxy-mode=iptables", "--node-masquerade-exclude=10.0.0.0/8", "--docker-bridge-cidr=none", "--iptables-sync-period=1m",
		"--metrics-bind-address=",
	)
	if o.Kubeconfig != "/k" || o.NodeName != "n" || o.Rules != "1.11" || o.SyncPeriod != time.Minute || o.MetricsAddress != "" ||
		o.HealthzAddress != "0.0.0.0:10256" {
		t.Errorf("got %+v", o)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")}; !slices.Equal(o.ClusterCIDRs, want) {
		t.Errorf("cluster ranges %v", o.ClusterCIDRs)
	}
	if !slices.Equal(o.Families, []service.Family{service.IPv4, service.IPv6}) || o.DockerBridge.IsValid() || len(o.NodeMasquerade) != 1 {
		t.Errorf("got %+v", o)
	}
	if o := mustParse(t, "--node-masquerade-exclude="); o.NodeMasquerade != nil {
		t.Errorf("empty list: %v", o.NodeMasquerade)
	}
	if o := mustParse(t, "--docker-bridge-cidr=172.17.0.1/16"); o.DockerBridge.Bits() != 16 {
		t.Errorf("the bridge's own address: %v", o.DockerBridge)
	}
}

// TestDefaultsOfFlags: without flags the options are the agent's defaults, for all families that the node supports.
func TestDefaultsOfFlags(t *testing.T) {
	got, want := mustParse(t).Options, options.Defaults()
	want.Families = want.SupportedFamilies()
	got.Configz, want.Version, want.QPS, want.Burst, want.ConntrackMin = nil, version, 5, 10, 131072
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-agent's defaults +without flags):\n%s", diff)
	}
}

// TestFlagsOfKubeProxy: a command line as clusters have it.
func TestFlagsOfKubeProxy(t *testing.T) {
	c := mustParse(t, "--conntrack-max-per-core=0", "--metrics-bind-address=0.0.0.0:10249", "--kubeconfig=/var/lib/kubelet/kubeconfig",
		"--cluster-cidr=10.244.0.0/16", "--detect-local-mode=ClusterCIDR", "--pod-interface-name-prefix=", "--v=3", "--feature-gates=A=true",
		"--healthz-bind-address=127.0.0.1", "--nodeport-addresses=primary", "--ipvs-strict-arp", "--conntrack-tcp-be-liberal")
	if c.MetricsAddress != "0.0.0.0:10249" || c.HealthzAddress != "127.0.0.1:10256" || !c.NodePortPrimary || !c.BeLiberal ||
		c.ConntrackPerCore != 0 || len(c.ClusterCIDRs) != 1 {
		t.Errorf("got %+v", c.Options)
	}
	if want := []string{"without effect: --feature-gates, --ipvs-strict-arp, --v"}; !slices.Equal(c.notes, want) {
		t.Errorf("noted %q, want %q", c.notes, want)
	}
	for _, one := range []struct {
		args string
		want func(o *command) bool
	}{
		{"--proxy-mode=nftables", func(o *command) bool {
			return o.MinSyncPeriod == 0 && o.Backend == options.BackendNFTables && o.NodePortPrimary && o.NodePortCIDRs == nil
		}},
		{"--proxy-mode=nftables --nodeport-addresses=0.0.0.0/0",
			func(o *command) bool { return !o.NodePortPrimary && len(o.NodePortCIDRs) == 1 }},
		{"--proxy-mode=nftables --iptables-min-sync-period=2s --masquerade-all --iptables-masquerade-bit=3", func(o *command) bool {
			return o.MinSyncPeriod == 2*time.Second && o.MasqueradeAll && o.MasqueradeBit == 3
		}},
		{"--iptables-min-sync-period=0s --masquerade-all", func(o *command) bool { return o.MinSyncPeriod == 0 && o.MasqueradeAll }},
		{"--detect-local-mode=NodeCIDR", func(o *command) bool { return o.PodsOfNode }},
		{"--pod-interface=cbr0", func(o *command) bool { return o.PodInterface == "cbr0" }},
		{"--pod-interface=veth+", func(o *command) bool { return o.PodInterface == "veth+" }},
		{"--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=azv",
			func(o *command) bool { return o.PodInterface == "azv+" }},
		{"--nodeport-addresses=10.0.0.7/8,fd00::/8", func(o *command) bool { return o.NodePortCIDRs[0].String() == "10.0.0.0/8" }},
		{"--bind-address=10.0.0.9 --oom-score-adj=-5", func(o *command) bool {
			return o.NodeIP.String() == "10.0.0.9" && *o.OOMScore == -5
		}},
	} {
		if c := mustParse(t, strings.Fields(one.args)...); !one.want(c) {
			t.Errorf("%s: %+v", one.args, c.Options)
		}
	}
}

// TestOrphanRemedy: the command that a walk and the status name for an orphaned table removes the tables of nftables.
func TestOrphanRemedy(t *testing.T) {
	_, remedy, _ := strings.Cut(nftables.Orphaned("node/a", "ip", nftables.TableName), `run "packetwalk-node `)
	args, _, found := strings.Cut(remedy, `"`)
	if !found {
		t.Fatal("no command")
	}
	if c := mustParse(t, strings.Fields(args)...); !c.cleanup || c.Backend != options.BackendNFTables {
		t.Errorf("%s: clean up %v, backend %s", args, c.cleanup, c.Backend)
	}
}

// TestEveryFlagOfKubeProxy: each has an effect or is named. That these are all is held to upstream by controlplane/oracle.
func TestEveryFlagOfKubeProxy(t *testing.T) {
	text, err := os.ReadFile("testdata/kube-proxy-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	said := func(c *command) string {
		text, err := json.Marshal([]any{c.Options, c.proxy, c.writeTo, c.cleanup, c.initOnly, c.showVersion})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	without := said(mustParse(t))
	for _, arg := range strings.Fields(string(text)) {
		name, _, _ := strings.Cut(arg, "=")
		if c := mustParse(t, arg); said(c) == without && !slices.Equal(c.notes, []string{"without effect: " + name}) {
			t.Errorf("%s does nothing, and is not named", arg)
		}
	}
}

// TestDeprecatedPorts: they are for addresses without a port, and 0 is for none.
func TestDeprecatedPorts(t *testing.T) {
	for _, c := range []struct{ args, healthz, metrics, note string }{
		{"--healthz-port=0 --metrics-port=0", "", "", ""},
		{"--healthz_port=7 --metrics-bind-address=10.0.0.7 --metrics-port 8", "0.0.0.0:10256", "10.0.0.7:8", "without effect: --healthz-port"},
		{"--healthz-bind-address=fd00::1 --healthz-port=7", "[fd00::1]:7", "127.0.0.1:10249", ""},
		{"--healthz-port=0 --write-config-to=/f", "0.0.0.0:10256", "127.0.0.1:10249", "without effect: --healthz-port"},
	} {
		got := mustParse(t, strings.Fields(c.args)...)
		if got.HealthzAddress != c.healthz || got.MetricsAddress != c.metrics || strings.Join(got.notes, "; ") != c.note {
			t.Errorf("%s: %q, %q, %q", c.args, got.HealthzAddress, got.MetricsAddress, got.notes)
		}
	}
}

// TestFamilies: as kube-proxy does, the service proxy serves all that the node has; what masquerades beside it has to be asked for IPv6.
func TestFamilies(t *testing.T) {
	path := configFile(t, "mode: nftables\n")
	four, none := []service.Family{service.IPv4}, options.Options{Backend: options.BackendNFTables}
	all := none.SupportedFamilies()
	for flags, want := range map[string][]service.Family{
		"--proxy-mode=nftables": all, "--config=" + path: all, "--config=" + path + " --ip-masq-agent": all,
		"--proxy-mode=nftables --ip-families=IPv4": four, "--config=" + path + " --ip-families=IPv4": four,
		"--ip-masq-agent": four, "--service-proxy=false": four,
	} {
		if got := mustParse(t, strings.Fields(flags)...).Families; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", flags, got, want)
		}
	}
}

// TestWrittenConfig: what --write-config-to writes asks for the same as the flags, and for what kube-proxy does without being asked.
func TestWrittenConfig(t *testing.T) {
	for _, flags := range []string{
		"", "--proxy-mode=nftables --masquerade-all --cluster-cidr=10.0.0.0/8 --iptables-min-sync-period=3s",
		"--nodeport-addresses=10.0.0.0/8 --detect-local-mode=BridgeInterface --pod-bridge-interface=cbr0 --metrics-bind-address=0.0.0.0",
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if status := run(append(strings.Fields(flags), "--write-config-to="+path)); status != 0 {
			t.Fatalf("%s: exit status %d", flags, status)
		}
		want := mustParse(t, strings.Fields(flags)...)
		got := mustParse(t, "--config="+path, "--strict-config")
		want.ConntrackPerCore, want.OOMScore = 32*1024, new(int32(-999))
		got.Configz, want.Configz = nil, nil
		if diff := cmp.Diff(want.Options, got.Options, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s: (-flags +written)\n%s", flags, diff)
		}
	}
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.conf")
	text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + text
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestConfigFile: a file holds in place of the flags, but for the node's name.
func TestConfigFile(t *testing.T) {
	path := configFile(t, "mode: nftables\nclusterCIDR: 10.244.0.0/16\nnftables: {masqueradeBit: 5}\nhostnameOverride: file\noomScoreAdj: 0\n"+
		"conntrack: {maxPerCore: 0}\nipvs: {strictARP: true}\nmod: x\n")
	c := mustParse(t, "--config="+path, "--hostname-override=N1", "--master=https://api", "--cluster-cidr=10.0.0.0/8", "--v=2",
		"--ip-families=IPv4")
	if c.Backend != options.BackendNFTables || c.ClusterCIDRs[0].String() != "10.244.0.0/16" || c.MasqueradeBit != 5 || c.NodeName != "n1" ||
		c.Server != "https://api" ||
		c.MinSyncPeriod != 0 || !c.NodePortPrimary || *c.OOMScore != 0 || c.ConntrackPerCore != 0 || len(c.Families) != 1 ||
		c.MetricsAddress != "127.0.0.1:10249" {
		t.Errorf("got %+v", c.Options)
	}
	want := []string{"without effect: --v", "without effect in " + path + ": ipvs.strictARP", "wrong in " + path + `: unknown field "mod"`,
		"ignored beside --config, as by kube-proxy: --cluster-cidr"}
	if !slices.Equal(c.notes, want) {
		t.Errorf("noted %q, want %q", c.notes, want)
	}
	if _, err := parse([]string{"--config=" + path, "--strict-config"}); err == nil || !strings.Contains(err.Error(), "ipvs.strictARP") {
		t.Errorf("strict: %v", err)
	}
	path = configFile(t, "nftables: {minSyncPeriod: 3s}\nmode: nftables\n")
	if c := mustParse(t, "--config="+path, "--strict-config"); c.MinSyncPeriod != 3*time.Second || c.ConntrackPerCore != 32*1024 ||
		c.ConntrackMin != 128*1024 || *c.OOMScore != -999 {
		t.Errorf("got %+v", c.Options)
	}
	if c := mustParse(t, "--config="+configFile(t, "bindAddress: fd00::1\n")); c.MinSyncPeriod != time.Second ||
		c.HealthzAddress != "[::]:10256" || c.MetricsAddress != "[::1]:10249" {
		t.Errorf("got %+v", c.Options)
	}
}

// TestBadFiles: what is wrong with a file is said with its path, all at once.
func TestBadFiles(t *testing.T) {
	_, err := parse([]string{"--config=" + configFile(t, "mode: ipvs\nclusterCIDR: pods\ndetectLocalMode: ClusterCIDR\nbindAddress: x\n"+
		"healthzBindAddress: here\nnodePortAddresses: [primary, 10.0.0.0/8]\noomScoreAdj: 2000\nclientConnection: {burst: -1}\n"+
		"conntrack: {min: -1, maxPerCore: -1, udpTimeout: -1s, udpStreamTimeout: -1s, tcpCloseWaitTimeout: -1s, tcpEstablishedTimeout: -1s}\n")})
	if err == nil {
		t.Fatal("no error")
	}
	for _, path := range []string{"mode", "clusterCIDR", "bindAddress", "healthzBindAddress", "nodePortAddresses", "oomScoreAdj",
		"clientConnection.burst", "conntrack.min", "conntrack.maxPerCore", "conntrack.udpTimeout", "conntrack.udpStreamTimeout",
		"conntrack.tcpCloseWaitTimeout", "conntrack.tcpEstablishedTimeout"} {
		if !strings.Contains("\n"+err.Error(), "\n"+path+": ") {
			t.Errorf("%s is not reported in %q", path, err)
		}
	}
	for text, want := range map[string]string{
		"detectLocalMode: BridgeInterface\n": "detectLocal.bridgeInterface: empty",
		"detectLocalMode: Pods\n":            "want ClusterCIDR, NodeCIDR",
		"mode: userspace\n":                  "want iptables or nftables",
	} {
		if _, err := parse([]string{"--config=" + configFile(t, text)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestBadFlagsSayWhatToWrite(t *testing.T) {
	for arg, want := range map[string]string{
		"--node-masquerade-exclude=10.1.2.3/16": "write 10.1.0.0/16",
		"--cluster-cidr=pods":                   "write it as 10.0.0.0/8",
		"--ip-families=4":                       "want IPv4, IPv6 or both",
		"--non-masquerade-cidr=":                "is not one range",
		"--proxy-mode=ipvs":                     "write iptables or nftables",
		"--iptables-min-sync-period=-1s":        "want 0 or more",
		"--config=/no/such/file":                "no such file",
		"--nonsense":                            "unknown flag",
		"now":                                   "all settings are flags",
	} {
		if _, err := parse([]string{arg}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

func TestExitStatus(t *testing.T) {
	t.Setenv("POD_UID", "")
	for arg, want := range map[string]int{"--version": 0, "--help": 0, "--nonsense": 2, "--proxy-rules=0.1": 2,
		"--kubeconfig=/no/such/file": 1, "check-livez": 2, "check-livez --help": 0, "check-livez --pod-uid=unknown": 1,
		"check-readyz": 2, "check-readyz --help": 0, "check-readyz --pod-uid=unknown": 1} {
		if got := run(strings.Fields(arg)); got != want {
			t.Errorf("%s: exit status %d, want %d", arg, got, want)
		}
	}
}
