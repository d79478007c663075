package cni

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

func TestStatusNoMaster(t *testing.T) {
	w := newWorld(t, modeBridge)
	w.must(call{command: "STATUS"})
	out := w.call(call{command: "STATUS", conf: map[string]any{"master": "eth7"}})
	if out.err == nil || out.err.Code != types.ErrLimitedConnectivity {
		t.Errorf("%+v", out.err)
	}
}

// CHECK names what is missing.
func TestCheckFinds(t *testing.T) {
	node, pod := "node", "p1"
	for _, tt := range []struct {
		mode netMode
		host string
		args []string
		want string
	}{
		{modeBridge, node, []string{"ip", "neigh", "del", "10.13.76.5", "dev", "azure0"}, "neighbour 10.13.76.5 on azure0"},
		{modeBridge, node, []string{"bridge", "link", "set", "dev", hostIfName(modeBridge, "azureid-p1eth0"), "hairpin", "off"},
			"hairpin is off on azv"},
		{modeBridge, node, []string{"bridge", "link", "set", "dev", "eth0", "hairpin", "off"}, "hairpin is off on eth0"},
		{modeBridge, node, []string{"ip", "link", "set", "eth0", "nomaster"}, "eth0 is not a port of azure0"},
		{modeBridge, node, []string{"ip", "addr", "add", "10.13.76.200/24", "dev", "eth0"}, "addresses are on eth0"},
		{modeBridge, node, []string{"ebtables-nft", "-t", "nat", "-F", "POSTROUTING"},
			"ebtables rule is missing: -t nat -A POSTROUTING -s Unicast"},
		{modeBridge, node, []string{"ip", "link", "del", hostIfName(modeBridge, "azureid-p1eth0")}, "is missing"},
		{modeBridge, pod, []string{"ip", "route", "del", "default"}, "the pod's route 0.0.0.0/0 via 10.13.76.1 is missing"},
		{modeBridge, pod, []string{"ip", "addr", "flush", "dev", "eth0"}, "lacks address 10.13.76.5/24"},
		{modeBridge, pod, []string{"ip", "link", "set", "eth0", "down"}, "is down"},
		{modeTransparent, node, []string{"ip", "route", "del", "10.13.76.5"}, "route 10.13.76.5/32 by azv"},
		{modeTransparent, node, []string{"sysctl", "-qw", "net.ipv4.conf." + hostIfName(modeTransparent, "default.p1") + ".proxy_arp=0"},
			"proxy_arp is not 1"},
		{modeTransparent, node, []string{"sysctl", "-qw", "net.ipv4.ip_forward=0"}, "ip_forward is not 1"},
		{modeTransparent, pod, []string{"ip", "neigh", "del", "169.254.1.1", "dev", "eth0"}, "the pod's neighbour 169.254.1.1"},
		{modeKubenet, node, []string{"ip", "link", "set", "cbr0", "promisc", "off"}, "promiscuous mode is false"},
		{modeKubenet, node, []string{"ip", "addr", "flush", "dev", "cbr0"}, "bridge cbr0 has addresses [], not 10.13.78.1"},
		{modeKubenet, node, []string{"ebtables-nft", "-F", "KUBE-DEDUP"},
			"ebtables rule is missing: -t filter -A KUBE-DEDUP -p IPv4 -s 0a:58:0a:0d:4e:01 -o veth+ --ip-src 10.13.78.0/24 -j DROP"},
		{modeKubenet, node, []string{"bridge", "link", "set", "dev", hostIfName(modeKubenet, "azureid-p1eth0"), "hairpin", "off"},
			"hairpin is off on veth"},
		{modeKubenet, pod, []string{"ip", "neigh", "del", "10.13.78.1", "dev", "eth0"}, "the pod's neighbour 10.13.78.1"},
		{modeTransparent, pod, []string{"ip", "route", "add", "10.13.76.0/24", "dev", "eth0"}, "goes past the node"},
	} {
		t.Run(string(tt.mode)+"/"+strings.Join(tt.args, " "), func(t *testing.T) {
			w := newWorld(t, tt.mode)
			w.pod("p1")
			result := w.must(call{command: "ADD", pod: "p1"})
			if e := w.check("p1", result); e != nil {
				t.Fatalf("CHECK right after ADD: %+v", *e)
			}
			w.in(tt.host, tt.args...)
			if e := w.check("p1", result); e == nil || !strings.Contains(e.Msg, tt.want) {
				t.Errorf("CHECK: %+v, want %q", e, tt.want)
			}
		})
	}
}

func TestCheckArguments(t *testing.T) {
	w := newWorld(t, modeTransparent)
	w.add("p1")
	if out := w.call(call{command: "CHECK", pod: "p1"}); out.err == nil || out.err.Code != 7 {
		t.Errorf("without prevResult: %+v", out.err)
	}
	w.pod("p2")
	if e := w.check("p2", []byte(`{"cniVersion":"1.1.0","ips":[]}`)); e == nil || e.Code != 3 {
		t.Errorf("unknown container: %+v", e)
	}
	if e := w.check("p1", []byte(`{"cniVersion":"1.1.0","ips":[{"address":"10.13.76.9/24"}]}`)); e == nil ||
		!strings.Contains(e.Msg, "prevResult.ips lacks 10.13.76.5/24") {
		t.Errorf("another result: %+v", e)
	}
	if out := w.call(call{command: "ADD", pod: "p1"}); out.err == nil || out.err.Code != codeExists ||
		!strings.Contains(out.err.Msg, "DEL it first") {
		t.Errorf("ADD twice: %+v", out.err)
	}
}

// From the command line, by the specification alone: every version, and the version that the result has.
func TestVersions(t *testing.T) {
	w := newWorld(t, modeTransparent)
	var got struct{ SupportedVersions []string }
	if err := json.Unmarshal(w.must(call{command: "VERSION"}), &got); err != nil {
		t.Fatal(err)
	}
	want := []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	if !cmp.Equal(want, got.SupportedVersions) {
		t.Errorf("versions %v", got.SupportedVersions)
	}
	for _, v := range want {
		w.change = map[string]any{"cniVersion": v, "dns": map[string]any{"nameservers": []string{"10.0.0.10"}}}
		pod := "v" + strings.ReplaceAll(v, ".", "")
		w.pod(pod)
		data := w.must(call{command: "ADD", pod: pod})
		var r map[string]any
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		ip := r["ips"].([]any)[0].(map[string]any)
		if _, hasFamily := ip["version"]; r["cniVersion"] != v || hasFamily != (v < "1") || !strings.Contains(string(data), "10.0.0.10") {
			t.Errorf("%s: %s", v, data)
		}
		if e := w.check(pod, data); (e != nil) != (v < "0.4") {
			t.Errorf("CHECK with version %s: %+v", v, e)
		}
		w.must(call{command: "DEL", pod: pod})
	}
	if out := w.call(call{command: "ADD", pod: "v110", conf: map[string]any{"cniVersion": "0.2.0"}}); out.err == nil || out.err.Code != 1 {
		t.Errorf("0.2.0: %+v", out.err)
	}
	if out := w.call(call{command: "FROB", pod: "v110"}); out.err == nil || out.err.Code != 4 {
		t.Errorf("unknown command: %+v", out.err)
	}
}
