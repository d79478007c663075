package cni

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
)

func bothModes(t *testing.T, f func(t *testing.T, w *world)) {
	for _, mode := range []netMode{modeBridge, modeTransparent} {
		t.Run(string(mode), func(t *testing.T) { f(t, newWorld(t, mode)) })
	}
}

// allModes runs a test with both modes of Azure CNI, and with kubenet.
func allModes(t *testing.T, f func(t *testing.T, w *world)) {
	bothModes(t, f)
	t.Run(string(modeKubenet), func(t *testing.T) { f(t, newWorld(t, modeKubenet)) })
}

// Claims A8 and A9: what bridge mode looks like from the pod and from the node.
func TestBridge(t *testing.T) {
	w := newWorld(t, modeBridge)
	ip1, ip2 := w.add("p1"), w.add("p2")
	if ip1 != "10.13.76.5" || ip2 != "10.13.76.6" {
		t.Fatalf("addresses %s and %s", ip1, ip2)
	}
	for _, p := range []struct {
		from, to string
	}{{"p1", ip2}, {"p2", ip1}, {"p1", "10.13.1.4"}, {"fabric", ip1}, {"fabric", ip2}, {"node", ip1}, {"p1", "10.13.76.4"},
		{"node", "10.13.1.4"}, {"fabric", "10.13.76.4"}} {
		w.ping(p.from, p.to, 64)
	}
	// A8
	podLink := w.run("ip", "-n", w.name("p1"), "addr", "show", "eth0")
	m := regexp.MustCompile(`eth0@if(\d+): <[^>]*UP[^>]*> mtu 1400 .*qlen 1000`).FindStringSubmatch(podLink)
	if m == nil || !strings.Contains(podLink, "    inet 10.13.76.5/24 scope global eth0\n") {
		t.Fatal(podLink)
	}
	nodeLinks := w.run("ip", "-n", w.name("node"), "-o", "link")
	if !regexp.MustCompile(`(?m)^` + m[1] + `: azv[0-9a-f]{11}@if\d+: .* master azure0 `).MatchString(nodeLinks) {
		t.Errorf("interface %s is no azv port of azure0: %s", m[1], nodeLinks)
	}
	if got := w.run("ip", "-n", w.name("p1"), "-4", "route"); got != "default via 10.13.76.1 dev eth0 \n10.13.76.0/24 dev eth0 proto kernel scope link src 10.13.76.5 \n" {
		t.Errorf("pod's routes: %s", got)
	}
	// A9
	host1 := hostIfName(modeBridge, "azureid-p1eth0")
	ports := w.run("bridge", "-n", w.name("node"), "-d", "link")
	for _, port := range []string{"eth0", host1, hostIfName(modeBridge, "azureid-p2eth0")} {
		if !regexp.MustCompile(`(?s): ` + port + `[@:][^\n]* master azure0 [^\n]*\n[^\n]* hairpin on `).MatchString(ports) {
			t.Errorf("%s is not a port with hairpin: %s", port, ports)
		}
	}
	mac := podMAC(host1).String()
	if got := w.run("bridge", "-n", w.name("node"), "fdb", "show", "br", "azure0", "brport", host1, "dynamic"); !strings.Contains(got, mac) {
		t.Errorf("%s is not learnt on its port: %s", mac, got)
	}
	if got := w.run("ip", "-n", w.name("node"), "neigh", "show", ip1, "dev", "azure0"); got != ip1+" lladdr "+mac+" PERMANENT \n" {
		t.Errorf("neighbour: %q", got)
	}
	bridge := w.run("ip", "-n", w.name("node"), "addr", "show", "azure0")
	if !strings.Contains(bridge, "ether 00:0d:3a:28:bd:02") || !strings.Contains(bridge, "inet 10.13.76.4/24") ||
		!strings.Contains(bridge, "mtu 1400") {
		t.Error(bridge)
	}
	if got := w.run("ip", "-n", w.name("node"), "-4", "route"); got != "default via 10.13.76.1 dev azure0 \n10.13.76.0/24 dev azure0 proto kernel scope link src 10.13.76.4 \n10.99.0.0/16 via 10.13.76.1 dev azure0 metric 50 \n" {
		t.Errorf("node's routes: %s", got)
	}
	if got := w.run("ip", "-n", w.name("node"), "-4", "addr", "show", "eth0"); strings.Contains(got, "inet") {
		t.Errorf("eth0 kept an address: %s", got)
	}
	// A layer 2 without Azure's answers to ARP would show the gateway's own address here.
	if got := w.run("ip", "-n", w.name("p1"), "neigh", "show", "10.13.76.1"); !strings.Contains(got, "12:34:56:78:9a:bc") {
		t.Errorf("the pod's gateway: %s", got)
	}
	// Frames leave with the NIC's address, whichever pod sent them.
	if got := w.run("ip", "-n", w.name("fabric"), "neigh", "show", ip1); !strings.Contains(got, mac) &&
		!strings.Contains(got, "00:0d:3a:28:bd:02") {
		t.Errorf("the fabric's neighbour %s: %s", ip1, got)
	}
	if _, err := os.Stat("/proc/sys/net/bridge"); err == nil {
		if got := w.in("node", "cat", "/proc/sys/net/bridge/bridge-nf-call-iptables"); got != "1\n" {
			t.Errorf("bridge-nf-call-iptables is %s", got)
		}
	}
}

// Claim E14: the routes of a pod in transparent mode; and the node's side.
func TestTransparent(t *testing.T) {
	w := newWorld(t, modeTransparent)
	ip1, ip2 := w.add("p1"), w.add("nginx")
	for _, p := range []struct {
		from, to string
		ttl      int
	}{{"p1", ip2, 63}, {"p1", "10.13.1.4", 63}, {"fabric", ip1, 63}, {"node", ip1, 64}, {"p1", "10.13.76.4", 64}, {"node", "10.13.1.4", 64}} {
		w.ping(p.from, p.to, p.ttl)
	}
	if got := w.run("ip", "-n", w.name("p1"), "-4", "route"); got != "default via 169.254.1.1 dev eth0 \n169.254.1.1 dev eth0 scope link \n" {
		t.Errorf("pod's routes: %s", got)
	}
	host := "azvc440f455693" // default.nginx
	if got := w.run("ip", "-n", w.name("node"), "link", "show", host); !strings.Contains(got, "ether aa:aa:aa:aa:aa:aa") ||
		!strings.Contains(got, "mtu 1400") || strings.Contains(got, "master") {
		t.Error(got)
	}
	if got := w.run("ip", "-n", w.name("node"), "route", "show", ip2); got != ip2+" dev "+host+" scope link \n" {
		t.Errorf("host route: %q", got)
	}
	if got := w.in("node", "cat", "/proc/sys/net/ipv4/conf/"+host+"/proxy_arp"); got != "1\n" {
		t.Errorf("proxy_arp is %s", got)
	}
	// By ARP too: without the static entry the node answers for 169.254.1.1 and for any address.
	w.run("ip", "-n", w.name("p1"), "neigh", "flush", "dev", "eth0", "nud", "permanent")
	w.ping("p1", "10.13.1.4", 63)
}

// Claims F3 and F4: what Azure CNI Overlay looks like from the pod and from the node; the first address of the node's part is a pod's.
func TestOverlay(t *testing.T) {
	w := newWorld(t, modeTransparent)
	w.change = map[string]any{"ipam": map[string]any{"type": "azure-cns", "mode": "v4overlay", "addresses": []string{"10.244.3.0/31"},
		"subnet": "10.244.0.0/16"}, "executionMode": "v4swift"}
	w.run("ip", "-n", w.name("fabric"), "route", "add", "10.244.3.0/24", "via", "10.13.76.4", "dev", "n0", "onlink")
	ip1, ip2 := w.add("p1"), w.add("nginx")
	if ip1 != "10.244.3.0" || ip2 != "10.244.3.1" {
		t.Fatalf("addresses %s and %s", ip1, ip2)
	}
	for _, p := range []struct {
		from, to string
		ttl      int
	}{{"p1", ip2, 63}, {"p1", "10.13.1.4", 63}, {"fabric", ip1, 63}, {"node", ip1, 64}, {"p1", "10.13.76.4", 64}} {
		w.ping(p.from, p.to, p.ttl)
	}
	pod := w.run("ip", "-n", w.name("p1"), "-4", "addr", "show", "eth0") + w.run("ip", "-n", w.name("p1"), "-4", "route")
	if !strings.Contains(pod, "inet 10.244.3.0/16 ") || !strings.HasSuffix(pod, "\ndefault via 169.254.1.1 dev eth0 \n169.254.1.1 dev eth0 scope link \n") {
		t.Errorf("pod's address and routes: %s", pod)
	}
	if got := w.run("ip", "-n", w.name("node"), "route", "show", ip2); got != ip2+" dev azvc440f455693 scope link \n" {
		t.Errorf("host route: %q", got)
	}
}

// What kubenet looks like from the pod and from the node, and that a pod which reaches itself or its neighbour through the bridge gets each
// packet once.
func TestKubenet(t *testing.T) {
	w := newWorld(t, modeKubenet)
	ip1, ip2 := w.add("p1"), w.add("p2")
	if ip1 != "10.13.78.2" || ip2 != "10.13.78.3" {
		t.Fatalf("addresses %s and %s", ip1, ip2)
	}
	for _, p := range []struct {
		from, to string
		ttl      int
	}{{"p1", ip2, 64}, {"p1", "10.13.1.4", 63}, {"fabric", ip1, 63}, {"node", ip1, 64}, {"p1", "10.13.76.4", 64}, {"node", "10.13.1.4", 64}} {
		w.ping(p.from, p.to, p.ttl)
	}
	node := w.name("node")
	if got := w.run("ip", "-n", w.name("p1"), "-4", "route"); got != "default via 10.13.78.1 dev eth0 \n10.13.78.0/24 dev eth0 proto kernel scope link src 10.13.78.2 \n" {
		t.Errorf("pod's routes: %s", got)
	}
	bridge := w.run("ip", "-n", node, "addr", "show", "cbr0")
	if !regexp.MustCompile(`<[^>]*PROMISC[^>]*> mtu 1400 `).MatchString(bridge) || !strings.Contains(bridge, "ether 0a:58:0a:0d:4e:01") ||
		!strings.Contains(bridge, "inet 10.13.78.1/24 scope global cbr0\n") {
		t.Error(bridge)
	}
	if got := w.run("ip", "-n", node, "-4", "addr", "show", "eth0"); !strings.Contains(got, "inet 10.13.76.4/24") {
		t.Errorf("eth0: %s", got)
	}
	if got := w.run("ip", "-n", node, "-o", "link"); !regexp.MustCompile(`veth[0-9a-f]{8}@\S+ .* master cbr0 `).MatchString(got) {
		t.Error(got)
	}
	want := `:KUBE-DEDUP ACCEPT
-A OUTPUT -j KUBE-DEDUP
-A KUBE-DEDUP -p IPv4 -s 0a:58:0a:0d:4e:01 -o veth+ --ip-src 10.13.78.1 -j ACCEPT
-A KUBE-DEDUP -p IPv4 -s 0a:58:0a:0d:4e:01 -o veth+ --ip-src 10.13.78.0/24 -j DROP
`
	if got := w.in("node", "ebtables-nft-save"); !strings.Contains(got, want) {
		t.Errorf("ebtables: %s", got)
	}
	// A service's address, as the service proxy would translate it, with the pod itself and with its neighbour behind it.
	w.in("node", "sh", "-ec", `iptables -t nat -A PREROUTING -d 10.0.0.1 -j DNAT --to `+ip1+
		`; iptables -t nat -A PREROUTING -d 10.0.0.2 -j DNAT --to `+ip2+`
		iptables -t nat -A POSTROUTING -s `+ip1+` -d `+ip1+` -j MASQUERADE`)
	for _, service := range []string{"10.0.0.1", "10.0.0.2"} {
		if got := w.in("p1", "ping", "-n", "-c2", "-i0.2", "-W3", service); !strings.Contains(got, "2 received") ||
			strings.Contains(got, "DUP") || strings.Contains(got, "duplicates") {
			t.Errorf("ping %s: %s", service, got)
		}
	}
	// The node's range changes when it registers anew; the bridge follows.
	w.must(call{command: "DEL", pod: "p1"})
	w.must(call{command: "DEL", pod: "p2"})
	w.change = map[string]any{"ipam": map[string]any{"type": "host-local", "subnet": "10.13.79.0/25"}}
	if ip := w.add("p1"); ip != "10.13.79.2" {
		t.Error(ip)
	}
	if got := w.run("ip", "-n", node, "-4", "addr", "show", "cbr0"); strings.Contains(got, "10.13.78.1") ||
		!strings.Contains(got, "inet 10.13.79.1/25 ") {
		t.Error(got)
	}
	w.ping("p1", "10.13.76.4", 64)
}

// A TCP connection of the node goes on while the first ADD moves its address to the bridge.
func TestNodeConnectionSurvives(t *testing.T) {
	w := newWorld(t, modeBridge)
	var conn net.Conn
	var l net.Listener
	w.inNS("fabric", func() {
		var err error
		if l, err = net.Listen("tcp", "10.13.1.4:7000"); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for s := bufio.NewScanner(c); s.Scan(); {
			fmt.Fprintln(c, s.Text())
		}
	}()
	w.inNode(func() {
		var err error
		if conn, err = net.DialTimeout("tcp", "10.13.1.4:7000", 20*time.Second); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() { conn.Close() })
	r := bufio.NewReader(conn)
	echo := func(s string) {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintln(conn, s)
		if got, err := r.ReadString('\n'); err != nil || got != s+"\n" {
			t.Fatalf("echo of %q: %q, %v", s, got, err)
		}
	}
	echo("before")
	ip := w.add("p1")
	echo("after")
	w.must(call{command: "DEL", pod: "p1"})
	echo("after DEL")
	if ip != "10.13.76.5" {
		t.Error(ip)
	}
}

func TestDelTwice(t *testing.T) {
	allModes(t, func(t *testing.T, w *world) {
		w.add("p0") // the network itself stays
		w.pod("p1")
		before := w.dump()
		w.must(call{command: "ADD", pod: "p1"})
		for range 2 {
			w.must(call{command: "DEL", pod: "p1"})
			if diff := cmp.Diff(before, w.dump()); diff != "" {
				t.Error(diff)
			}
		}
		w.must(call{command: "DEL", pod: "never-was", env: map[string]string{"CNI_NETNS": ""}})
		// The namespace went first, as when a node's runtime is restarted.
		w.add("p2")
		w.kill("p2")
		w.pods = w.pods[:2]
		w.must(call{command: "DEL", pod: "p2"})
		w.must(call{command: "DEL", pod: "p2", env: map[string]string{"CNI_NETNS": ""}})
		if diff := cmp.Diff(before, w.dump()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestConcurrent(t *testing.T) {
	allModes(t, func(t *testing.T, w *world) {
		w.add("p0")
		before := w.dump()
		const n = 20
		pods := make([]string, n)
		for i := range pods {
			pods[i] = fmt.Sprintf("c%d", i)
			w.netns(pods[i])
		}
		outs := make([]output, n)
		var wg sync.WaitGroup
		for i, pod := range pods {
			wg.Go(func() { outs[i] = w.call(call{command: "ADD", pod: pod}) })
		}
		wg.Wait()
		seen := map[string]bool{}
		for i, out := range outs {
			if out.err != nil {
				t.Fatalf("ADD: %+v", *out.err)
			}
			ip := w.parse(out)
			if seen[ip] {
				t.Errorf("%s was given out twice", ip)
			}
			seen[ip] = true
			if e := w.check(pods[i], out.data); e != nil {
				t.Errorf("CHECK: %+v", *e)
			}
			if i%5 == 0 {
				w.ping("fabric", ip, w.hops(64))
			}
		}
		for _, pod := range pods {
			wg.Go(func() { outs[0] = w.call(call{command: "DEL", pod: pod}) })
		}
		wg.Wait()
		if diff := cmp.Diff(before, w.dump()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestExhausted(t *testing.T) {
	bothModes(t, func(t *testing.T, w *world) {
		w.change = map[string]any{"ipam.addresses": []string{"10.13.76.5-10.13.76.6"}}
		w.add("p1")
		w.add("p2")
		w.pod("p3")
		before := w.dump()
		out := w.call(call{command: "ADD", pod: "p3"})
		if out.err == nil || out.err.Code != 11 {
			t.Fatalf("ADD: %+v", out.err)
		}
		for _, want := range []string{"all 2 addresses", "10.13.76.5 by default/p1", "10.13.76.6 by default/p2"} {
			if !strings.Contains(out.err.Msg, want) {
				t.Errorf("%q lacks %q", out.err.Msg, want)
			}
		}
		if diff := cmp.Diff(before, w.dump()); diff != "" {
			t.Error(diff)
		}
		if out := w.call(call{command: "STATUS"}); out.err == nil || out.err.Code != types.ErrPluginNotAvailable {
			t.Errorf("STATUS: %+v", out.err)
		}
		// A pod that died without DEL gives its address up when it is needed.
		w.kill("p1")
		w.pods = slices.DeleteFunc(w.pods, func(p string) bool { return p == "p1" })
		if out := w.call(call{command: "STATUS"}); out.err != nil {
			t.Errorf("STATUS: %+v", out.err)
		}
		if ip := w.add("p3"); ip != "10.13.76.5" {
			t.Error(ip)
		}
		w.must(call{command: "DEL", pod: "p1"})
		w.ping("node", "10.13.76.5", 64)
	})
}

// As a runtime uses it: a conflist through libcni, chained after another plugin's result, with GC.
func TestLibcni(t *testing.T) {
	allModes(t, func(t *testing.T, w *world) {
		list, err := libcni.ConfListFromBytes([]byte(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"azure","plugins":[%s]}`, w.conf(nil))))
		if err != nil {
			t.Fatal(err)
		}
		cni := libcni.NewCNIConfigWithCacheDir([]string{w.bin}, t.TempDir(), nil)
		ctx := context.Background()
		runtime := func(pod string) *libcni.RuntimeConf {
			return &libcni.RuntimeConf{ContainerID: "id-" + pod, NetNS: w.path(pod), IfName: "eth0",
				Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", pod}}}
		}
		do := func(what string, f func() error) {
			t.Helper()
			w.inNode(func() {
				if err := f(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		w.pod("p0")
		w.pods = nil
		do("STATUS", func() error { return cni.GetStatusNetworkList(ctx, list) })
		for _, pod := range []string{"p0", "p1"} {
			if pod != "p0" {
				w.netns(pod)
			}
			do("ADD", func() error {
				res, err := cni.AddNetworkList(ctx, list, runtime(pod))
				if err != nil {
					return err
				}
				r, err := current.NewResultFromResult(res)
				if err != nil {
					return err
				}
				last := r.Interfaces[len(r.Interfaces)-1]
				if last.Name != "eth0" || last.Sandbox != w.path(pod) || *r.IPs[0].Interface != len(r.Interfaces)-1 {
					t.Errorf("result: %s", r)
				}
				return nil
			})
			do("CHECK", func() error { return cni.CheckNetworkList(ctx, list, runtime(pod)) })
		}
		kept := w.dump()
		w.netns("p2")
		do("ADD", func() error { _, err := cni.AddNetworkList(ctx, list, runtime("p2")); return err })
		do("GC", func() error {
			return cni.GCNetworkList(ctx, list,
				&libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "id-p0", IfName: "eth0"}, {ContainerID: "id-p1", IfName: "eth0"}}})
		})
		if diff := cmp.Diff(kept, w.dump()); diff != "" {
			t.Error(diff)
		}
		do("CHECK", func() error { return cni.CheckNetworkList(ctx, list, runtime("p1")) })
		for _, pod := range []string{"p0", "p1", "p1"} {
			do("DEL", func() error { return cni.DelNetworkList(ctx, list, runtime(pod)) })
		}
		// After another plugin its result comes first and indices follow on.
		prev := json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"x"}],"ips":[{"address":"10.9.9.9/24","interface":0}]}`)
		var r current.Result
		if err := json.Unmarshal(w.must(call{command: "ADD", pod: "p1", conf: map[string]any{"prevResult": prev}}), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.IPs) != 2 || r.Interfaces[0].Name != "x" || r.Interfaces[*r.IPs[1].Interface].Name != "eth0" {
			t.Errorf("chained result: %v", r)
		}
	})
}

// TestResetSettings: a pod whose namespace copied other settings has the kernel's own when the configuration asks for it, and else keeps
// them, also on its interface.
func TestResetSettings(t *testing.T) {
	allModes(t, func(t *testing.T, w *world) {
		for reset, want := range map[bool]string{false: "8 8", true: "0 0"} {
			pod := fmt.Sprintf("p%t", reset)
			w.pod(pod)
			w.in(pod, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=8", "net.ipv4.conf.default.arp_ignore=8")
			w.must(call{command: "ADD", pod: pod, conf: map[string]any{"resetSettings": reset}})
			got := w.in(pod, "sysctl", "-n", "net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.eth0.arp_ignore")
			if strings.Join(strings.Fields(got), " ") != want {
				t.Errorf("resetSettings %t: arp_ignore is %q, want %q", reset, got, want)
			}
		}
	})
}
