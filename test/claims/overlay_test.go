package claims

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/test/world"
)

// The ranges and servers of examples/overlay.
const (
	overlayPods   = "10.244.0.0/16"
	overlayVM     = "10.225.0.4"
	overlayServer = "172.20.1.4"
	wireServer    = "168.63.129.16"
)

// overlayNode is a node, with the pods on it.
type overlayNode struct {
	name, address, nic string
	pods               netip.Prefix
	client, web        corev1.Pod
}

// overlay is the world of Azure CNI Overlay: two nodes, each with a pod that answers and a pod to ask from.
type overlay struct {
	*world.World
	nodes []overlayNode
}

func overlayWorld(t *testing.T) *overlay {
	t.Helper()
	o := &overlay{World: world.Up(t, "overlay", "app.yaml")}
	o.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	o.Kubectl(t, "rollout", "status", "daemonset/client", "--timeout=120s")
	var nodes corev1.NodeList
	o.Get(t, &nodes, "nodes")
	for _, n := range nodes.Items {
		at := overlayNode{name: n.Name, address: n.Status.Addresses[0].Address, client: o.podOn(t, "client", n.Name), web: o.podOn(t, "whereami", n.Name)}
		at.pods, _ = netip.MustParseAddr(at.web.Status.PodIP).Prefix(24)
		at.nic = regexp.MustCompile(`-(\d+)$`).ReplaceAllString(n.Name, "-nic-$1")
		o.nodes = append(o.nodes, at)
	}
	if len(o.nodes) != 2 {
		t.Fatalf("%d nodes", len(o.nodes))
	}
	return o
}

// podOn returns the pod of an application on a node.
func (o *overlay) podOn(t *testing.T, app, node string) (pod corev1.Pod) {
	t.Helper()
	eventually.Succeeds(t, 30*time.Second, func() error {
		var pods corev1.PodList
		o.Get(t, &pods, "pods", "-l", "app="+app, "--field-selector", "status.phase=Running,spec.nodeName="+node)
		pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if len(pods.Items) != 1 || pods.Items[0].Status.PodIP == "" {
			return fmt.Errorf("%d pods of %s on %s", len(pods.Items), app, node)
		}
		pod = pods.Items[0]
		return nil
	})
	return pod
}

// curl has a host ask an address, and gives the answer.
func (o *overlay) curl(host, url string, more ...string) (string, error) {
	args := append([]string{"ssh", "--name", o.Name, host, "--", "curl", "-sS", "--max-time", "3"}, more...)
	return o.Try(20*time.Second, append(args, url)...)
}

func hostOf(pod corev1.Pod) string { return "pod/" + pod.Namespace + "/" + pod.Name }

// seenBy returns the client's address that a whereami answers with.
func (o *overlay) seenBy(t *testing.T, from, url string) string {
	t.Helper()
	var answer struct {
		Address string `json:"your_address"`
	}
	out, err := o.curl(from, url)
	if err == nil {
		err = json.Unmarshal([]byte(out), &answer)
	}
	if err != nil {
		t.Fatalf("%s asks %s: %v", from, url, err)
	}
	return answer.Address
}

// loggedBy returns the client's address of a VM's log line for a request from a pod.
func (o *overlay) loggedBy(t *testing.T, pod corev1.Pod, vm, address string) (source string) {
	t.Helper()
	path := fmt.Sprintf("/from-%s-%d", pod.Name, time.Now().UnixNano())
	if _, err := o.curl(hostOf(pod), "http://"+address+path, "-o", "/dev/null"); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^(\S+) - - \[.*\] "GET ` + path + ` `)
	eventually.Succeeds(t, 30*time.Second, func() error {
		m := line.FindStringSubmatch(o.Run(t, "logs", "--name", o.Name, "vm/"+vm))
		if m == nil {
			return errors.New("the server has not logged the request")
		}
		source = m[1]
		return nil
	})
	return source
}

// change brings the lab to another file of the example, until the test ends.
func (o *overlay) change(t *testing.T, file string) {
	t.Helper()
	t.Cleanup(func() { o.Run(t, "up", "--name", o.Name, "-f", o.Example("overlay", "cluster.yaml")) })
	o.Run(t, "up", "--name", o.Name, "-f", o.Example("overlay", file))
}

func (o *overlay) ping(t *testing.T, from corev1.Pod, to string, ttl int) {
	t.Helper()
	expect(t, o.SSH(t, hostOf(from), "ping", "-c", "1", "-W", "3", to), fmt.Sprintf(`^64 bytes from %s: icmp_seq=1 ttl=%d `,
		regexp.QuoteMeta(to), ttl))
}

// own returns a pattern of the end of a walk that no rule translated.
func own(address string) string {
	return `^the destination sees the sender's own address, ` + regexp.QuoteMeta(address) + `:\d+`
}

func TestF1(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	if o.nodes[0].pods == o.nodes[1].pods {
		t.Errorf("both nodes have %s", o.nodes[0].pods)
	}
	var pods corev1.PodList
	o.Get(t, &pods, "pods", "-A")
	for _, p := range pods.Items {
		if p.Spec.HostNetwork || p.Status.PodIP == "" {
			continue
		}
		i := slices.IndexFunc(o.nodes, func(n overlayNode) bool { return n.name == p.Spec.NodeName })
		if a := netip.MustParseAddr(p.Status.PodIP); i < 0 || !o.nodes[i].pods.Contains(a) || !netip.MustParsePrefix(overlayPods).Contains(a) {
			t.Errorf("pod %s on %s has %s", p.Name, p.Spec.NodeName, a)
		}
	}
	for _, n := range o.nodes {
		got := o.Az(t, "network", "nic", "show", "-g", "MC_akstest_overlay_westeurope", "-n", n.nic, "--query", "ipConfigurations[].privateIPAddress", "-o", "tsv")
		if strings.TrimSpace(got) != n.address {
			t.Errorf("the IP configurations of %s are %q, want %s", n.nic, got, n.address)
		}
	}
}

func TestF2(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	expect(t, o.Kubectl(t, "get", "nnc", "-n", "kube-system"), `^NAME +ALLOCATED IPS +NC MODE +NC VERSION$`)
	wide := o.Kubectl(t, "get", "nnc", "-n", "kube-system", "-o", "wide")
	expect(t, wide, `^NAME +REQUESTED IPS +ALLOCATED IPS +SUBNET +SUBNET CIDR +SUBNET CIDR V6 +NC ID +NC MODE +NC TYPE +NC VERSION$`)
	for _, n := range o.nodes {
		expect(t, wide, `^`+n.name+` +0 +256 +routingdomain_\S+ +10\.244\.0\.0/16 +\S+ +static +overlay +0$`)
		var nnc struct {
			Metadata struct{ OwnerReferences []struct{ Kind, Name string } }
			Status   struct {
				NetworkContainers []struct{ Type, AssignmentMode, PrimaryIP, NodeIP, SubnetAddressSpace string }
			}
		}
		o.Get(t, &nnc, "nnc", "-n", "kube-system", n.name)
		if c := nnc.Status.NetworkContainers; len(c) != 1 || c[0].Type != "overlay" || c[0].AssignmentMode != "static" ||
			c[0].PrimaryIP != n.pods.String() || c[0].NodeIP != n.address || c[0].SubnetAddressSpace != overlayPods {
			t.Errorf("%s: %+v", n.name, c)
		}
		if of := nnc.Metadata.OwnerReferences; len(of) != 1 || of[0].Kind != "Node" || of[0].Name != n.name {
			t.Errorf("%s is owned by %v", n.name, of)
		}
	}
}

func TestF3(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	for i, n := range o.nodes {
		if bridges := o.SSH(t, n.name, "ip", "-o", "link", "show", "type", "bridge"); bridges != "" {
			t.Errorf("%s has a bridge: %s", n.name, bridges)
		}
		routes := o.SSH(t, n.name, "ip", "route")
		for _, p := range []corev1.Pod{n.client, n.web} {
			sum := sha1.Sum([]byte(p.Namespace + "." + p.Name))
			link := "azv" + hex.EncodeToString(sum[:])[:11]
			expect(t, o.SSH(t, n.name, "ip", "link", "show", link), `link/ether aa:aa:aa:aa:aa:aa `)
			if got := o.SSH(t, n.name, "cat", "/proc/sys/net/ipv4/conf/"+link+"/proxy_arp"); got != "1\n" {
				t.Errorf("proxy_arp of %s is %q", link, got)
			}
			expect(t, routes, `^`+regexp.QuoteMeta(p.Status.PodIP)+` dev `+link+` scope link ?$`)
		}
		other := o.nodes[1-i].web.Status.PodIP
		expect(t, o.SSH(t, n.name, "ip", "route", "get", other), `^`+regexp.QuoteMeta(other)+` via 10\.224\.0\.1 dev eth0 `)
		if rules := o.SSH(t, n.name, "iptables-save"); strings.Contains(rules, "SWIFT") {
			t.Errorf("%s has a chain SWIFT:\n%s", n.name, rules)
		}
	}
}

func TestF4(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	for _, n := range o.nodes {
		pod := hostOf(n.client)
		expect(t, o.SSH(t, pod, "ip", "addr", "show", "eth0"), `^ +inet `+regexp.QuoteMeta(n.client.Status.PodIP)+`/16 `)
		routes := strings.Split(strings.TrimSpace(o.SSH(t, pod, "ip", "route")), "\n")
		for i := range routes {
			routes[i] = strings.TrimSpace(routes[i])
		}
		if want := []string{"default via 169.254.1.1 dev eth0", "169.254.1.1 dev eth0 scope link"}; !slices.Equal(routes, want) {
			t.Errorf("routes %q, want %q", routes, want)
		}
		expect(t, o.SSH(t, pod, "ip", "neigh", "show", "169.254.1.1"), `^169\.254\.1\.1 dev eth0 lladdr aa:aa:aa:aa:aa:aa `)
	}
}

func TestF5(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	for i, n := range o.nodes {
		to := o.nodes[1-i]
		a, b := n.client.Status.PodIP, to.web.Status.PodIP
		for _, node := range []string{n.name, to.name} {
			seen := o.Capture(t, node, "eth0", "icmp", func() { o.ping(t, n.client, b, 62) })
			expect(t, seen, `IP `+regexp.QuoteMeta(a)+` > `+regexp.QuoteMeta(b)+`: ICMP echo request`,
				`IP `+regexp.QuoteMeta(b)+` > `+regexp.QuoteMeta(a)+`: ICMP echo reply`)
		}
		o.ping(t, n.client, n.web.Status.PodIP, 63)
		expect(t, agrees(t, o.World, "pod/"+n.client.Name, "pod/"+to.web.Name+":80"), own(a), `Azure CNI Overlay`)
		expect(t, agrees(t, o.World, "pod/"+n.client.Name, "pod/"+n.web.Name+":80"), own(a))
	}
}

func TestF6(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	for _, n := range o.nodes {
		for vm, address := range map[string]string{"vm": overlayVM, "server": overlayServer} {
			if got := o.loggedBy(t, n.client, vm, address); got != n.address {
				t.Errorf("%s sees %s, want %s", vm, got, n.address)
			}
			o.ping(t, n.client, address, 63)
			expect(t, agrees(t, o.World, "pod/"+n.client.Name, "vm/"+vm+":80"),
				`^the destination sees `+regexp.QuoteMeta(n.address)+`:.* because nat IP-MASQ-AGENT 2: MASQUERADE `)
		}
	}
}

func TestF7(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	const kubelet = "10250"
	for i, n := range o.nodes {
		other := o.nodes[1-i]
		for _, to := range []struct{ node, address, seen, link string }{
			{other.name, other.address, n.address, "eth0"}, {n.name, n.address, n.client.Status.PodIP, "any"},
		} {
			seen := o.Capture(t, to.node, to.link, "tcp dst port "+kubelet+" and dst host "+to.address+" and src net ("+overlayPods+" or 10.224.0.0/16)", func() {
				_, _ = o.curl(hostOf(n.client), "https://"+to.address+":"+kubelet+"/", "-k", "-o", "/dev/null")
			})
			expect(t, seen, `IP `+regexp.QuoteMeta(to.seen)+`\.\d+ > `+regexp.QuoteMeta(to.address)+`\.`+kubelet+`: Flags \[S\]`)
		}
		expect(t, agrees(t, o.World, "pod/"+n.client.Name, "node/"+other.name+":"+kubelet), `^the destination sees `+regexp.QuoteMeta(n.address)+`:`)
		expect(t, agrees(t, o.World, "pod/"+n.client.Name, "node/"+n.name+":"+kubelet), own(n.client.Status.PodIP))
	}
}

func TestF8(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	for _, n := range o.nodes {
		saved := o.SSH(t, n.name, "iptables-save", "-t", "nat")
		const ensure = `"\"ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom IP-MASQ-AGENT chain\""`
		want := []string{
			`-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`,
			`-A POSTROUTING -m comment --comment ` + ensure + ` -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT`,
			`-A IP-MASQ-AGENT -d 10.244.0.0/16 -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN`,
			`-A IP-MASQ-AGENT -m comment --comment "ip-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)" -j MASQUERADE`,
		}
		var got []string
		for line := range strings.Lines(saved) {
			line = strings.TrimSpace(line)
			if strings.Contains(line, "CNI-HOSTPORT-MASQ") {
				if strings.HasPrefix(line, "-A POSTROUTING") && len(got) > 0 {
					t.Errorf("%s: CNI-HOSTPORT-MASQ is not in front:\n%s", n.name, saved)
				}
				continue
			}
			if strings.HasPrefix(line, "-A POSTROUTING ") || strings.HasPrefix(line, "-A IP-MASQ-AGENT ") {
				got = append(got, line)
			}
		}
		slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(b[:6], a[:6]) }) // POSTROUTING first
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", n.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	config := o.Kubectl(t, "get", "configmap", "-n", "kube-system", "azure-ip-masq-agent-config-reconciled", "-o", `jsonpath={.data.ip-masq-agent-reconciled}`)
	expect(t, config, `^nonMasqueradeCIDRs:$`, `^ *- 10\.244\.0\.0/16$`, `^masqLinkLocal: true$`)
	if n := strings.Count(config, "/"); n != 1 {
		t.Errorf("%d ranges in\n%s", n, config)
	}
}

func TestF9(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	n := o.nodes[0]
	restore := func() {
		o.Kubectl(t, "delete", "-f", o.Example("overlay", "masq.yaml"), "--ignore-not-found")
		eventually.Succeeds(t, 70*time.Second, func() error {
			_, err := o.curl(hostOf(n.client), "http://"+overlayVM)
			return err
		})
		if got := o.loggedBy(t, n.client, "vm", overlayVM); got != n.address {
			t.Errorf("afterwards the VM sees %s, want %s", got, n.address)
		}
	}
	o.Kubectl(t, "apply", "-f", o.Example("overlay", "masq.yaml"))
	t.Cleanup(restore)
	eventually.Succeeds(t, 70*time.Second, func() error {
		if _, err := o.curl(hostOf(n.client), "http://"+overlayVM); err == nil {
			return errors.New("the VM still answers")
		}
		return nil
	})
	seen := o.Capture(t, "vm", "eth0", "tcp port 80", func() {
		if _, err := o.curl(hostOf(n.client), "http://"+overlayVM); err == nil {
			t.Error("the VM answers the pod's own address")
		}
	})
	expect(t, seen, `IP `+regexp.QuoteMeta(n.client.Status.PodIP)+`\.\d+ > 10\.225\.0\.4\.80: Flags \[S\]`)
	expect(t, agrees(t, o.World, "pod/"+n.client.Name, "vm/vm:80"), own(n.client.Status.PodIP), `the route leads nowhere`)
}

func TestF10(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	for _, n := range o.nodes {
		if out, err := o.curl("vm", "http://"+n.web.Status.PodIP); err == nil {
			t.Errorf("the VM reaches %s: %s", n.web.Status.PodIP, out)
		}
		expect(t, agrees(t, o.World, "vm/vm", "pod/"+n.web.Name+":80"), `^the destination sees nothing: dropped on fabric .*the route leads nowhere`)
	}
	o.change(t, "routes.yaml")
	for _, n := range o.nodes {
		if got := o.seenBy(t, "vm", "http://"+n.web.Status.PodIP); got != overlayVM {
			t.Errorf("the pod sees %s, want %s", got, overlayVM)
		}
		expect(t, agrees(t, o.World, "vm/vm", "pod/"+n.web.Name+":80"), own(overlayVM))
	}
}

// lookUp asks Azure's name server for ifconfig.co by a transport, $1, and prints the answer, whose last bytes are the address. By TCP both
// messages have their length in front (RFC 1035, 4.2.2).
const lookUp = `exec 3<>/dev/$1/168.63.129.16/53
size=56
if [ $1 = tcp ]; then printf '\0\35' >&3; size=58; fi
printf '\22\64\1\0\0\1\0\0\0\0\0\0\10ifconfig\2co\0\0\1\0\1' >&3
timeout 3 head -c $size <&3 | od -An -v -w64 -tu1`

// wireDrops returns the rules of filter FORWARD for the wire server and how many packets each has counted, in their order.
func (o *overlay) wireDrops(t *testing.T, node string) (ports []string, packets []string) {
	t.Helper()
	rule := regexp.MustCompile(`(?m)^\[(\d+):\d+\] -A FORWARD -d 168\.63\.129\.16/32 -p tcp -m tcp --dport (\d+) -j DROP$`)
	for _, m := range rule.FindAllStringSubmatch(o.SSH(t, node, "iptables-save", "-c", "-t", "filter"), -1) {
		ports, packets = append(ports, m[2]), append(packets, m[1])
	}
	return ports, packets
}

func TestF11(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	n := o.nodes[0]
	ports, before := o.wireDrops(t, n.name)
	if want := []string{"32526", "80"}; !slices.Equal(ports, want) {
		t.Fatalf("drops of ports %v, want %v", ports, want)
	}
	for _, port := range ports {
		if _, err := o.curl(hostOf(n.client), "http://"+wireServer+":"+port+"/machine/?comp=goalstate"); err == nil || !strings.Contains(err.Error(), "(28)") {
			t.Errorf("port %s: %v, want a time-out", port, err)
		}
		expect(t, agrees(t, o.World, "pod/"+n.client.Name, wireServer+":"+port),
			`^the destination sees nothing: dropped on node \S+ by filter FORWARD \d+: .*wire server, port `+port)
	}
	_, after := o.wireDrops(t, n.name)
	for i := range ports {
		if after[i] == before[i] {
			t.Errorf("the counter of port %s stays %s", ports[i], before[i])
		}
	}
	for _, transport := range []string{"udp", "tcp"} {
		expect(t, o.SSH(t, hostOf(n.client), "bash", "-c", lookUp, "dns", transport), ` 198 +51 +100 +80$`)
	}
	o.Kubectl(t, "run", "onnode", "--image=ubuntu", "--restart=Never", "--overrides", `{"spec":{"hostNetwork":true}}`, "--", "sleep", "infinity")
	t.Cleanup(func() { o.Kubectl(t, "delete", "pod", "onnode", "--now") })
	o.Kubectl(t, "wait", "--for=condition=Ready", "pod/onnode", "--timeout=120s")
	out := o.Kubectl(t, "exec", "onnode", "--", "curl", "-sS", "--max-time", "3", "http://"+wireServer+"/machine/?comp=goalstate")
	expect(t, out, `<GoalState>`)
}

func TestF12(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	for _, n := range o.nodes {
		out, err := o.curl(hostOf(n.client), "http://169.254.169.254/metadata/instance?api-version=2021-02-01", "-H", "Metadata:true")
		var instance struct {
			Compute struct{ Name string }
			Network struct {
				Interface []struct {
					IPv4 struct {
						IPAddress []struct{ PrivateIPAddress string }
					}
				}
			}
		}
		if err == nil {
			err = json.Unmarshal([]byte(out), &instance)
		}
		if err != nil || instance.Compute.Name != n.name || instance.Network.Interface[0].IPv4.IPAddress[0].PrivateIPAddress != n.address {
			t.Errorf("%v: %s, want node %s", err, out, n.name)
		}
		expect(t, agrees(t, o.World, "pod/"+n.client.Name, "169.254.169.254:80"), `^the destination sees `+regexp.QuoteMeta(n.address)+`:`)
	}
}

func TestF13(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	o.change(t, "nsg.yaml")
	for i, n := range o.nodes {
		other := o.nodes[1-i]
		if out, err := o.curl(hostOf(n.client), "http://"+other.web.Status.PodIP); err == nil {
			t.Errorf("pods of two nodes reach each other: %s", out)
		}
		expect(t, agrees(t, o.World, "pod/"+n.client.Name, "pod/"+other.web.Name+":80"),
			`^the destination sees nothing: dropped on fabric .*NSG no-pods rule DenyPods \(200\) denies`)
		if got := o.seenBy(t, hostOf(n.client), "http://"+n.web.Status.PodIP); got != n.client.Status.PodIP {
			t.Errorf("on one node the pod sees %s, want %s", got, n.client.Status.PodIP)
		}
		expect(t, agrees(t, o.World, "pod/"+n.client.Name, "pod/"+n.web.Name+":80"), own(n.client.Status.PodIP))
	}
}

func TestF14(t *testing.T) {
	t.Parallel()
	o := overlayWorld(t)
	o.Kubectl(t, "apply", "-f", o.Example("overlay", "hostport.yaml"))
	t.Cleanup(func() { o.Kubectl(t, "delete", "-f", o.Example("overlay", "hostport.yaml")) })
	o.Kubectl(t, "rollout", "status", "daemonset/hostport", "--timeout=120s")
	var service corev1.Service
	o.Get(t, &service, "service", "hostport")
	for _, n := range o.nodes {
		if got := o.seenBy(t, hostOf(n.client), "http://"+n.address+":8080"); got != n.address {
			t.Errorf("at the hostPort of %s the pod sees %s, want the node's %s", n.name, got, n.address)
		}
		expect(t, agrees(t, o.World, "pod/"+n.client.Name, "node/"+n.name+":8080"), `^the destination sees `+regexp.QuoteMeta(n.address)+`:`)
		eventually.Succeeds(t, 20*time.Second, func() error { // the service proxy learns of the endpoints
			_, err := o.curl(hostOf(n.client), "http://"+service.Spec.ClusterIP)
			return err
		})
		if got := o.seenBy(t, hostOf(n.client), "http://"+service.Spec.ClusterIP); got != n.client.Status.PodIP {
			t.Errorf("by ClusterIP the pod sees %s, want %s", got, n.client.Status.PodIP)
		}
	}
}
