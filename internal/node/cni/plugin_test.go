package cni

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

// allModes are both of Azure CNI's, and kubenet.
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
			t.Errorf("%s is no port with hairpin: %s", port, ports)
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
		if conn, err = net.DialTimeout("tcp", "10.13.1.4:7000", 5*time.Second); err != nil {
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

// A failing ADD leaves nothing, be it the node's first or not.
func TestAddFails(t *testing.T) {
	inPod := func(args ...string) func(*world) {
		return func(w *world) { w.run("ip", append([]string{"-n", w.name("p1")}, args...)...) }
	}
	for _, tt := range []struct {
		name  string
		mode  netMode
		spoil func(*world)
		call  call
		code  uint
		want  string
		under string // a shell command that breaks something in a mount namespace of the plugin's own
	}{
		{name: "no namespace", mode: modeBridge, call: call{env: map[string]string{"CNI_NETNS": "/run/netns/none"}}, code: 8,
			want: "no such file"},
		{name: "no namespace file", mode: modeBridge, call: call{env: map[string]string{"CNI_NETNS": "/etc/hostname"}}, code: 8,
			want: "/etc/hostname"},
		{name: "pod interface there", mode: modeBridge, spoil: inPod("link", "add", "eth0", "type", "bridge"), code: 100, want: "there already"},
		{name: "host interface there", mode: modeTransparent, spoil: func(w *world) {
			w.run("ip", "-n", w.name("node"), "link", "add", hostIfName(modeTransparent, "default.p1"), "type", "bridge")
		}, code: 100, want: "there already"},
		// The pod's default route is there by another interface: the last step fails.
		{name: "pod route", mode: modeBridge, spoil: otherDefault, code: 999, want: "add route 0.0.0.0/0 to the pod: file exists"},
		{name: "pod route", mode: modeTransparent, spoil: otherDefault, code: 999, want: "add route 0.0.0.0/0 to the pod: file exists"},
		{name: "read-only sysctls", mode: modeTransparent, under: "mount -o bind,ro /proc/sys /proc/sys", code: 999,
			want: "read-only file system"},
		{name: "read-only sysctls", mode: modeBridge, under: "mount -o bind,ro /proc/sys /proc/sys", code: 999, want: "read-only file system",
			spoil: func(w *world) {
				w.in("node", "sysctl", "-qw", "net.ipv4.ip_forward=0")
				w.run("ip", "-n", w.name("node"), "link", "set", "eth0", "nomaster")
			}},
		{name: "ebtables fails", mode: modeBridge, under: "mount --bind /bin/false /usr/sbin/xtables-nft-multi", code: 999, want: "ebtables"},
		{name: "no master", mode: modeTransparent, call: call{conf: map[string]any{"master": "eth7"}}, code: 51, want: "no interface eth7"},
		{name: "arguments", mode: modeBridge, call: call{env: map[string]string{"CNI_ARGS": "X=1"}}, code: 4, want: "CNI_ARGS"},
		{name: "interface is no bridge", mode: modeBridge, call: call{conf: map[string]any{"bridge": "lo"}}, code: 7, want: "name another one"},
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%s/first=%v", tt.mode, tt.name, first), func(t *testing.T) {
				if first && tt.name == "read-only sysctls" && tt.mode == modeBridge {
					t.Skip("breaks what only a second ADD finds")
				}
				w := newWorld(t, tt.mode)
				w.in("node", "sysctl", "-qw", "net.ipv4.ip_forward=1")
				if !first {
					w.add("p0")
				}
				w.pod("p1")
				if tt.spoil != nil {
					tt.spoil(w)
				}
				before := w.dump()
				c := tt.call
				c.command, c.pod = "ADD", "p1"
				e := w.callUnder(c, tt.under)
				if e == nil {
					t.Fatal("ADD succeeded")
				}
				if e.Code != tt.code || !strings.Contains(e.Msg, tt.want) {
					t.Errorf("error %+v, want code %d and %q", *e, tt.code, tt.want)
				}
				if diff := cmp.Diff(before, w.dump()); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func otherDefault(w *world) {
	w.run("ip", "-n", w.name("p1"), "link", "add", "net1", "type", "bridge")
	w.run("ip", "-n", w.name("p1"), "addr", "add", "10.50.0.2/24", "dev", "net1")
	w.run("ip", "-n", w.name("p1"), "link", "set", "net1", "up")
	w.run("ip", "-n", w.name("p1"), "route", "add", "default", "via", "10.50.0.1")
}

// callUnder runs the plugin after a shell command, in a mount namespace of their own.
func (w *world) callUnder(c call, shell string) *cniErr {
	w.t.Helper()
	if shell == "" {
		return w.call(c).err
	}
	cmd := w.command(c)
	cmd.Args = []string{"unshare", "-m", "sh", "-c", shell + " && exec " + cmd.Path}
	cmd.Path, _ = exec.LookPath("unshare")
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
	var out []byte
	var err error
	w.inNode(func() { out, err = cmd.Output() })
	if err == nil {
		return nil
	}
	e := &cniErr{}
	if err := json.Unmarshal(out, e); err != nil {
		w.t.Fatalf("no error object: %s", out)
	}
	return e
}

// An ADD killed anywhere, the first one included, leaves what the next ADD of the same container puts right.
func TestKilled(t *testing.T) {
	allModes(t, func(t *testing.T, w *world) {
		killed := 0
		for i := range 40 {
			pod := "p1"
			if i == 0 {
				w.pod(pod)
			}
			cmd := w.command(call{command: "ADD", pod: pod})
			var err error
			w.inNode(func() {
				if err = cmd.Start(); err != nil {
					return
				}
				// The plugin takes some milliseconds: the moments are spread over them.
				time.Sleep(time.Duration(rand.IntN(16000)) * time.Microsecond)
				_ = cmd.Process.Kill()
				err = cmd.Wait()
			})
			if err == nil { // it was faster
				w.must(call{command: "DEL", pod: pod})
			} else {
				killed++
				if i%3 == 0 { // the runtime gives the container up
					w.must(call{command: "DEL", pod: pod})
				}
				ip := ""
				if out := w.call(call{command: "ADD", pod: pod}); out.err == nil {
					ip = w.parse(out)
					if e := w.check(pod, out.data); e != nil {
						t.Fatalf("CHECK: %+v", *e)
					}
				} else if out.err.Code == codeExists && strings.Contains(out.err.Msg, "since an earlier ADD") {
					// killed after all was done
				} else {
					t.Fatalf("ADD after a kill: %+v", *out.err)
				}
				if ip != "" {
					w.ping("fabric", ip, w.hops(64))
				}
				w.must(call{command: "DEL", pod: pod})
			}
			if i%8 == 7 { // a fresh node, to kill its first ADD too
				w.kill("node")
				w.boot()
				_ = os.RemoveAll(w.state)
			}
		}
		if killed == 0 {
			t.Error("no ADD was killed")
		}
		w.add("p1")
		w.must(call{command: "DEL", pod: "p1"})
		if got := w.dump(); strings.Contains(got, "azv") || strings.Contains(got, ": veth") || strings.Count(got, "-A PREROUTING") > 2 {
			t.Errorf("left over: %s", got)
		}
		w.ping("node", "10.13.1.4", 64)
	})
}

// After a reboot the state is there and nothing of what it tells of: addresses are neither leaked nor given out twice.
func TestReboot(t *testing.T) {
	allModes(t, func(t *testing.T, w *world) {
		for _, p := range []string{"p1", "p2", "p3"} {
			w.add(p)
		}
		w.kill("node")
		w.boot()
		w.must(call{command: "DEL", pod: "p1"}) // the runtime cleans up what it remembers
		if got := w.call(call{command: "STATUS"}); got.err != nil {
			t.Errorf("STATUS: %+v", *got.err)
		}
		w.pod("p4")
		result := w.must(call{command: "ADD", pod: "p4"})
		if ip := w.parse(output{data: result}); ip != w.firstIP() {
			t.Errorf("the first address after the reboot is %s", ip)
		}
		w.must(call{command: "DEL", pod: "p2"}) // late
		if e := w.check("p4", result); e != nil {
			t.Errorf("CHECK: %+v", *e)
		}
		w.ping("p4", "10.13.1.4", w.hops(64))
	})
}

// A state that is lost or damaged while pods run is rebuilt from the kernel.
func TestStateLost(t *testing.T) {
	for _, how := range []string{"lost", "damaged"} {
		t.Run(how, func(t *testing.T) {
			allModes(t, func(t *testing.T, w *world) {
				for _, p := range []string{"p0", "p1", "p2"} {
					w.pod(p)
				}
				w.add("p1")
				w.must(call{command: "DEL", pod: "p1"})
				before := w.dump()
				ips := []string{w.add("p1"), w.add("p2")}
				path := filepath.Join(w.state, "azure.json")
				if how == "lost" {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				} else if err := os.WriteFile(path, []byte(`{"version":1,"att`), 0o600); err != nil {
					t.Fatal(err)
				}
				if ip := w.add("p0"); slices.Contains(ips, ip) {
					t.Errorf("%s was given out twice", ip)
				}
				for _, p := range []string{"p0", "p1", "p2"} {
					w.must(call{command: "DEL", pod: p})
				}
				if diff := cmp.Diff(before, w.dump()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
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
		{modeBridge, node, []string{"ip", "link", "set", "eth0", "nomaster"}, "eth0 is no port of azure0"},
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
