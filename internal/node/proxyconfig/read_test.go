package proxyconfig

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// TestFileOfKubeadm: a file with all fields, as kubeadm writes it, asks for nothing that is not there.
func TestFileOfKubeadm(t *testing.T) {
	text, err := os.ReadFile("testdata/kubeadm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, strange, err := Read(text)
	if err != nil {
		t.Fatal(err)
	}
	if c.ClientConnection.Kubeconfig != "/var/lib/kube-proxy/kubeconfig.conf" || c.ClusterCIDR != "10.244.0.0/16" {
		t.Errorf("got %+v", c)
	}
	if len(strange)+len(c.WithoutEffect()) > 0 {
		t.Errorf("strange %q, without effect %q", strange, c.WithoutEffect())
	}
}

func TestWhatIsNamed(t *testing.T) {
	for _, c := range []struct {
		name, text       string
		strange, nothing []string
	}{
		{name: "nothing", text: ""},
		{name: "JSON", text: "---\n"},
		{name: "unknown", text: "ipvs: {shedule: rr}\nmode: nftables\nmodes: x\n", strange: []string{
			`unknown field "ipvs.shedule"`, `unknown field "modes"`}},
		{name: "other case", text: "clusterCidr: 10.0.0.0/8\n", strange: []string{`unknown field "clusterCidr"`}},
		{name: "twice", text: "mode: nftables\nmode: iptables\n", strange: []string{`line 4: key "mode" already set in map`}},
		{name: "two documents", text: "mode: nftables\n---\nmode: iptables\n", strange: []string{"a second document, of which nothing is read"}},
		{name: "no second document", text: "mode: nftables\n---\n# nothing\n"},
		{name: "half a document", text: "mode: nftables\n---\na: [\n", strange: []string{"a second document, of which nothing is read"}},
		{name: "of other modes", text: "mode: nftables\niptables: {masqueradeBit: 3, minSyncPeriod: 2s}\nnftables: {masqueradeBit: 4}\n",
			nothing: []string{"iptables.masqueradeBit", "iptables.minSyncPeriod"}},
		{name: "nftables in mode iptables", text: "nftables: {masqueradeAll: true}\n", nothing: []string{"nftables.masqueradeAll"}},
		{name: "not here", text: "featureGates: {B: true, A: true}\nlogging: {format: json, verbosity: 2, flushFrequency: 6s}\n" +
			"ipvs: {strictARP: true}\nwinkernel: {sourceVip: a}\nenableProfiling: true\nconfigSyncPeriod: 1m\n" +
			"clientConnection: {contentType: application/json}\n",
			nothing: []string{"featureGates.A", "featureGates.B", "clientConnection.contentType", "logging.format", "logging.flushFrequency",
				"logging.verbosity", "enableProfiling", "ipvs.strictARP", "winkernel.sourceVip", "configSyncPeriod"}},
		{name: "as it is anyway", text: "nftables: {masqueradeBit: 14, syncPeriod: 30s}\nconfigSyncPeriod: 15m\n" +
			"logging: {format: text, flushFrequency: 5s}\nclientConnection: {contentType: application/vnd.kubernetes.protobuf}\n"},
		{name: "ways to recognise pods", text: "detectLocalMode: BridgeInterface\nclusterCIDR: 10.0.0.0/8\n" +
			"detectLocal: {bridgeInterface: cbr0, interfaceNamePrefix: veth}\n",
			nothing: []string{"detectLocal.interfaceNamePrefix", "clusterCIDR"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, strange, err := Read([]byte(head + c.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.strange, strange); diff != "" {
				t.Errorf("strange (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.nothing, got.WithoutEffect()); diff != "" {
				t.Errorf("without effect (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFilesOfNoUse(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "want kubeproxy.config.k8s.io/v1alpha1, KubeProxyConfiguration",
		"kind: KubeletConfiguration\n":     `kind "KubeletConfiguration"`,
		"a: [":                             "neither YAML nor JSON",
		head + "mode: 1\n":                 "cannot unmarshal number",
		head + "iptables: {syncPeriod: 3}": "",
	} {
		if _, _, err := Read([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzRead: what can be read is read the same from what is written of it, and then has nothing strange.
func FuzzRead(f *testing.F) {
	kubeadm, err := os.ReadFile("testdata/kubeadm.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(kubeadm)
	f.Add([]byte(head + "mode: nftables\nmode: iptables\nfeatureGates: {A: true}\nlogging: {vmodule: [{filePattern: a, verbosity: 1}]}\n"))
	f.Add([]byte(head + "conntrack: {min: 0, maxPerCore: null, udpTimeout: 1m30s}\nnodePortAddresses: [primary]\nnone: {a: &a [*a]}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, _, err := Read(text)
		if err != nil {
			return
		}
		c.WithoutEffect()
		written, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		again, strange, err := Read(written)
		if err != nil || len(strange) > 0 {
			t.Fatalf("%s: %v, %v", written, strange, err)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Fatalf("(-read +written and read):\n%s", diff)
		}
	})
}
