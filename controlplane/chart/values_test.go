package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/engine"
)

// TestWrongValues: what would crash or have no effect is refused, by "helm lint", too, with the value's name and a sentence.
func TestWrongValues(t *testing.T) {
	const off = "serviceProxy: {enabled: false}\n"
	for _, c := range []struct{ values, want string }{
		{"{}", "image.tag: missing"},
		{"apiServer: ''", "apiServer: missing; write the API server's own address"},
		{"image: {tag: ''}", `write the tag that "make image" printed`},
		// What the schema refuses.
		{"serviceProxi: {enabled: true}", "additional properties 'serviceProxi' not allowed"},
		{"serviceProxy: {backend: ipvs}", "/serviceProxy/backend"},
		{"serviceProxy: {config: {mode: x}}", "additional properties 'mode' not allowed"},
		{"serviceProxy: {config: {featureGates: {A: true}}}", "additional properties 'featureGates' not allowed"},
		{"serviceProxy: {config: {clientConnection: {kubeconfig: /f}}}", "additional properties 'kubeconfig' not allowed"},
		{"serviceProxy: {config: {conntrack: {maxPerCore: -1}}}", "/serviceProxy/config/conntrack/maxPerCore"},
		{"serviceProxy: {config: {oomScoreAdj: 2000}}", "/serviceProxy/config/oomScoreAdj"},
		{"serviceProxy: {config: {detectLocalMode: Pods}}", "/serviceProxy/config/detectLocalMode"},
		{"serviceProxy: {config: {bindAddress: 10.0.0.1}}", "/serviceProxy/config/bindAddress"},
		{"cni: {enabled: true}", "additional properties 'cni' not allowed"},
		{"node: {toleration: []}", "additional properties 'toleration' not allowed"},
		{"seLinuxOptions: {domain: spc_t}", "additional properties 'domain' not allowed"},
		{"imagePullSecrets: [registry]", "/imagePullSecrets/0"},
		{"metrics: {port: 65536}", "/metrics/port"},
		// A pod that starts beside the old one waits for that one, which ends when the new one is ready.
		{"node: {updateStrategy: {rollingUpdate: {maxSurge: 1}}}", "additional properties 'maxSurge' not allowed"},
		{"serviceProxy: {config: {conntrack: {maxPerCore: 3000000000}}}", "/serviceProxy/config/conntrack/maxPerCore"},
		{"serviceProxy: {config: {conntrack: {min: 3000000000}}}", "/serviceProxy/config/conntrack/min"},
		{"serviceProxy: {config: {clientConnection: {burst: 3000000000}}}", "/serviceProxy/config/clientConnection/burst"},
		{"serviceProxy: {config: {clientConnection: {qps: 1e300}}}", "/serviceProxy/config/clientConnection/qps"},
		// What would crash.
		{"apiServer: http://api.example", `apiServer: "http://api.example" is not https://HOST:PORT`},
		{"apiServer: https://api.example/", "no path, not even a slash at the end"},
		{"apiServer: https://api.example:443/api", "no path"},
		{"apiServer: 'https://api.example:99999'", `apiServer: "https://api.example:99999" is not https://HOST:PORT`},
		{"apiServer: 'https://api.example:0'", "is not https://HOST:PORT"},
		{"apiServer: 'https://..'", "is not https://HOST:PORT"},
		{"apiServer: 'https://10.0.0.256'", "is not https://HOST:PORT"},
		{"apiServer: 'https://[::1::]:443'", "is not https://HOST:PORT"},
		{"image: {repository: 'Reg.example/x', tag: v1}", "image.repository: "},
		{"image: {repository: 'reg.example/x:v1', tag: v1}", "with the tag in image.tag"},
		{"image: {repository: 'x:v1', tag: v1}", "with the tag in image.tag"},
		{"image: {tag: 'a b'}", `image.tag: "a b" is not a tag`},
		{"image: {digest: sha256:00}", `image.digest: "sha256:00" is not a digest`},
		{"nameOverride: A_b", "nameOverride: "},
		{"nameOverride: 9x", "nameOverride: "}, // not the beginning of a Service's name
		{"serviceProxy: {clusterCIDR: 10.244.0.0}", `serviceProxy.clusterCIDR: "10.244.0.0" is not a range`},
		{"serviceProxy: {clusterCIDR: 10.244.0.0/33}", "is not a range"},
		{"serviceProxy: {clusterCIDR: 10.244.00.0/16}", "is not a range"},
		{"serviceProxy: {clusterCIDR: 'fd00::1::/64'}", "is not a range"},
		{"serviceProxy: {clusterCIDR: '1:2:3:4:5:6:7/64'}", "is not a range"},
		{"serviceProxy: {clusterCIDR: '1:2:3:4:5:6:7:8::/64'}", "is not a range"},
		{"serviceProxy: {clusterCIDR: 'fd00:::/64'}", "is not a range"},
		{"serviceProxy: {clusterCIDR: 'fd00::12345/64'}", "is not a range"},
		{"serviceProxy: {clusterCIDR: 'fd00::/129'}", "is not a range"},
		{"serviceProxy: {clusterCIDR: '10.0.0.0/8,10.1.0.0/16'}", "more than one range of IPv4"},
		{"serviceProxy: {clusterCIDR: [10.0.0.0/8, pods]}", `"pods" is not a range`},
		{"serviceProxy: {config: {detectLocalMode: BridgeInterface}}", "detectLocal.bridgeInterface: missing"},
		{"serviceProxy: {config: {nftables: {syncPeriod: 30}}}", "/serviceProxy/config/nftables/syncPeriod"},
		{"serviceProxy: {config: {nftables: {syncPeriod: 30sec}}}", `serviceProxy.config.nftables.syncPeriod: "30sec" is not a duration`},
		{"serviceProxy: {config: {nftables: {syncPeriod: 9999999h}}}", `syncPeriod: "9999999h" is not a duration`},
		{"serviceProxy: {config: {conntrack: {udpTimeout: 2562047h3000m}}}", `udpTimeout: "2562047h3000m" is not a duration`},
		{"serviceProxy: {config: {nftables: {syncPeriod: 1m, minSyncPeriod: 1m1s}}}", "minSyncPeriod: longer than syncPeriod"},
		{"serviceProxy: {config: {nftables: {minSyncPeriod: 0.6m}}}", "minSyncPeriod: longer than syncPeriod"},
		{"serviceProxy: {config: {nodePortAddresses: [primary, 10.0.0.0/8]}}", `nodePortAddresses: "primary" is not a range`},
		{"serviceProxy: {config: {nodePortAddresses: [eth0]}}", `nodePortAddresses: "eth0" is not a range`},
		{"serviceProxy: {config: {conntrack: {udpTimeout: 1 minute}}}", "conntrack.udpTimeout: "},
		{"serviceProxy: {backend: iptables, privilegedInit: false, config: {iptables: {localhostNodePorts: true}}}", "it needs serviceProxy.privilegedInit"},
		{"ipMasqAgent: {enabled: true, config: {nonMasqueradeCIDRs: [10.1.2.3/16]}}", `"10.1.2.3/16" has bits set beyond its length`},
		{"ipMasqAgent: {enabled: true, config: {nonMasqueradeCIDRs: ['fd00:0:0:1::/48']}}", "has bits set beyond its length"},
		{"ipMasqAgent: {enabled: true, config: {nonMasqueradeCIDRs: [ten]}}", `"ten" is not a range`},
		{"ipMasqAgent: {enabled: true, format: v1, config: {resyncInterval: 10ms}}", "resyncInterval: less than 1s"},
		{"ipMasqAgent: {enabled: true, format: v1, config: {cidrLimit: 1, nonMasqueradeCIDRs: [10.0.0.0/8, 11.0.0.0/8]}}", "2 ranges; the most is 1"},
		{"node: {updateStrategy: {rollingUpdate: {maxUnavailable: 200%}}}", "node.updateStrategy.rollingUpdate.maxUnavailable"},
		{"node: {resources: {requests: {memory: 64 MB}}}", `node.resources.requests.memory: "64 MB" is not a quantity`},
		{"node: {podLabels: {app.kubernetes.io/name: x}}", "node.podLabels: the chart writes the label app.kubernetes.io/name itself"},
		{"node: {extraArgs: [watch-rules]}", `node.extraArgs: "watch-rules" is not a flag`},
		{"node: {extraArgs: [--config=/f]}", "node.extraArgs: the chart writes the flag --config itself"},
		{"node: {extraArgs: [--watch-rule=false]}", "node.extraArgs: there is no flag --watch-rule that would have an effect here; there are "},
		{"node: {extraArgs: [--cluster-cidr=10.0.0.0/8]}", "there is no flag --cluster-cidr that would have an effect here"}, // kube-proxy's
		{"metrics: {enabled: true, port: 10250}", "metrics.port: 10250 is the port of the kubelet's API"},
		{"metrics: {serviceMonitor: {interval: often}}", "metrics.serviceMonitor.interval"},
		// What would have no effect.
		{"serviceProxy: {enabled: false, clusterCIDR: 10.0.0.0/8}", "serviceProxy.clusterCIDR: without effect"},
		{"serviceProxy: {clusterCIDR: 10.0.0.0/8, config: {detectLocalMode: NodeCIDR}}", "serviceProxy.clusterCIDR: without effect with detectLocalMode NodeCIDR"},
		{"ipFamilies: [IPv4]\nserviceProxy: {clusterCIDR: 'fd00::/56'}", "serviceProxy.clusterCIDR: fd00::/56 has no effect without IPv6 in ipFamilies"},
		{"ipFamilies: [IPv6]\nserviceProxy: {config: {nodePortAddresses: [10.0.0.0/8]}}", "10.0.0.0/8 has no effect without IPv4 in ipFamilies"},
		{"serviceProxy: {config: {conntrack: {maxPerCore: 0, min: 5}}}", "conntrack.min: without effect, because maxPerCore is 0"},
		{"serviceProxy: {config: {detectLocalMode: BridgeInterface, detectLocal: {bridgeInterface: 'a/b'}}}", `bridgeInterface: "a/b" is not the name of an interface`},
		{"serviceProxy: {config: {detectLocalMode: InterfaceNamePrefix, detectLocal: {interfaceNamePrefix: abcdefghijklmnop}}}", "is not the name of an interface"},
		{"serviceProxy: {config: {iptables: {masqueradeAll: true}}}", "serviceProxy.config.iptables: without effect"},
		{"serviceProxy: {config: {detectLocal: {bridgeInterface: cbr0}}}", "detectLocal.bridgeInterface: without effect"},
		{"serviceProxy: {privilegedInit: false, config: {conntrack: {maxPerCore: 5}}}", "conntrack.maxPerCore: without effect"},
		{"serviceProxy: {privilegedInit: false, config: {conntrack: {tcpBeLiberal: true}}}", "conntrack.tcpBeLiberal: without effect"},
		{"ipMasqAgent: {config: {masqLinkLocal: true}}", "ipMasqAgent.config: without effect, because ipMasqAgent.enabled is false"},
		{"ipMasqAgent: {configMaps: [mine]}", "ipMasqAgent.configMaps: without effect"},
		{"ipMasqAgent: {enabled: true, configMaps: [mine], config: {masqLinkLocal: true}}", "ipMasqAgent.config: not together with"},
		{"ipMasqAgent: {enabled: true, config: {resyncInterval: 1m}}", "ipMasqAgent.config.resyncInterval: without effect with ipMasqAgent.format v2"},
		{off + "ipMasqAgent: {enabled: true, config: {nonMasqueradeCIDRs: ['fd00::/8']}}", "has no effect without IPv6 in ipFamilies"},
		{off + "metrics: {enabled: true}", "metrics.enabled: without effect"},
		{"metrics: {serviceMonitor: {enabled: true}}", "metrics.serviceMonitor.enabled: it needs metrics.enabled"},
		{"metrics: {prometheusRule: {enabled: true}}", "metrics.prometheusRule.enabled: it needs metrics.enabled"},
		// What is right.
		{complete, ""},
		{"apiServer: 'https://[fd00::1]:6443'", ""},
		{"apiServer: 'https://10.0.0.1:65535'", ""},
		{"apiServer: 'https://a-1.example.'", ""},
		{"ipFamilies: [IPv6]\nserviceProxy: {clusterCIDR: 'fd00::/56', config: {nodePortAddresses: ['fd00::/8']}}", ""},
		{"serviceProxy: {config: {detectLocalMode: InterfaceNamePrefix, detectLocal: {interfaceNamePrefix: veth}}}", ""},
		{"serviceProxy: {config: {conntrack: {udpTimeout: 2562047h, min: 2147483647}}}", ""},
		{"image: {repository: 'reg.example:5000/a/b-c', tag: v1}", ""},
		{"serviceProxy: {clusterCIDR: '10.244.0.0/16, fd00:10:244::/56'}", ""},
		{"serviceProxy: {clusterCIDR: ['1:2:3:4:5:6:7:8/128', 0.0.0.0/0]}", ""},
		{"serviceProxy: {clusterCIDR: ['::/0']}", ""},
		{"serviceProxy: {privilegedInit: false, config: {conntrack: {maxPerCore: 0, udpTimeout: 0s}}}", ""},
		{"serviceProxy: {config: {nftables: {syncPeriod: 1h, minSyncPeriod: 500ms}}}", ""},
		{"ipMasqAgent: {enabled: true, config: {nonMasqueradeCIDRs: ['fd00:0:0:1::/64', 10.128.0.0/9, 255.255.255.255/32]}}", ""},
		{"metrics: {enabled: true, serviceMonitor: {enabled: true}}", ""},
		{"node: {extraArgs: [--watch-rules=false]}", ""},
		{"node: {updateStrategy: {type: OnDelete, rollingUpdate: null}}", ""},
	} {
		t.Run(c.values, func(t *testing.T) {
			values := map[string]any{}
			if c.values != "{}" {
				values = parse(t, complete)
			}
			maps.Copy(values, parse(t, c.values))
			_, err := render(t, values)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if strings.Contains(c.want, "missing") || strings.Contains(c.want, "make image") {
				return // "helm lint" without values is no fault
			}
			var lines []string
			for _, m := range lint.RunAll(dir, values, namespace).Messages {
				if m.Severity >= support.ErrorSev {
					lines = append(lines, m.Error())
				}
			}
			said := strings.ReplaceAll(strings.Join(lines, "\n"), `\"`, `"`)
			if (said == "") != (c.want == "") || !strings.Contains(said, c.want) {
				t.Errorf("lint: %s, want %q", said, c.want)
			}
		})
	}
}

// TestNullSections: whatever value is null, each by itself, the chart is rendered or says in a sentence what is missing.
func TestNullSections(t *testing.T) {
	var all func(at []string, value any) [][]string
	all = func(at []string, value any) (paths [][]string) {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		for name, v := range m {
			path := append(slices.Clone(at), name)
			paths = append(append(paths, path), all(path, v)...)
		}
		return paths
	}
	for _, path := range all(nil, load(t).Values) {
		values := parse(t, complete)
		in := values
		for _, name := range path[:len(path)-1] {
			next, ok := in[name].(map[string]any)
			if !ok {
				next = map[string]any{}
				in[name] = next
			}
			in = next
		}
		in[path[len(path)-1]] = nil
		if err := renderLax(t, values); err != nil && strings.Contains(err.Error(), "executing") && !strings.Contains(err.Error(), ": missing") {
			t.Errorf("%s: null: %v", strings.Join(path, "."), err)
		}
	}
}

// renderLax renders as Helm does, for which a value that is not there is empty.
func renderLax(t *testing.T, values map[string]any) error {
	t.Helper()
	kube, err := common.ParseKubeVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	caps := common.DefaultCapabilities.Copy()
	caps.KubeVersion = *kube
	top, err := chartutil.ToRenderValues(load(t), values, common.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true}, caps)
	if err != nil {
		return err
	}
	_, err = (engine.Engine{}).RenderWithContext(t.Context(), load(t), top)
	return err
}

// TestNullValues: null takes away a default, as in a file whose fields were emptied, and Helm renders it as it does an absent value.
func TestNullValues(t *testing.T) {
	for _, text := range []string{
		"node: {resources: null}", "node: {tolerations: null}", "node: {extraArgs: null}", "serviceProxy: {clusterCIDR: null}",
		"serviceProxy: {config: null}", "ipFamilies: null", "metrics: {port: null}", "node: {resources: {requests: null}}",
	} {
		t.Run(text, func(t *testing.T) {
			values := parse(t, complete)
			maps.Copy(values, parse(t, text))
			if err := renderLax(t, values); err != nil {
				t.Error(err)
			}
		})
	}
}
