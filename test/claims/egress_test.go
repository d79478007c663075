package claims

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/test/world"
)

// The firewall's addresses, and the VM's.
const (
	firewallPublic = "203.0.113.3"
	egressVM       = "10.225.0.4"
)

// egressWorld returns a cluster of examples/egress with the pod ubuntu and two pods whereami.
func egressWorld(t *testing.T, file string) *outbound {
	t.Helper()
	o := &outbound{World: world.UpFile(t, "egress", file, "ubuntu.yaml", "whereami.yaml")}
	o.ready(t)
	return o
}

func (o *outbound) ready(t *testing.T) {
	t.Helper()
	o.Kubectl(t, "wait", "--for=condition=Ready", "pod/ubuntu", "--timeout=120s")
	o.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	o.Get(t, &o.pod, "pod", "ubuntu")
}

// ownEgress makes a lab of examples/egress/cluster.yaml that only the test has.
func ownEgress(t *testing.T, name string) *outbound {
	t.Helper()
	o := &outbound{World: world.Own(t, name)}
	t.Cleanup(func() { _, _ = o.Try(2*time.Minute, "down", "--name", o.Name) })
	if _, err := o.Try(5*time.Minute, "up", "--name", o.Name, "-f", o.Example("egress", "cluster.yaml")); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"ubuntu.yaml", "whereami.yaml"} {
		o.Kubectl(t, "apply", "-f", o.Example("egress", m))
	}
	o.ready(t)
	return o
}

// change brings the lab to another cluster.yaml: the example's with replacements.
func (o *outbound) change(t *testing.T, replacements ...string) {
	t.Helper()
	text, err := os.ReadFile(o.Example("egress", "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer(replacements...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Run(t, "up", "--name", o.Name, "-f", file)
}

// seenAs checks the address that a host on the internet sees of the pod ubuntu, and that the walk says the same as the kernel; "" for no
// answer.
func (o *outbound) seenAs(t *testing.T, want, why string) {
	t.Helper()
	seen, err := o.calls(ifconfig)
	if want == "" {
		if err == nil {
			t.Errorf("the internet answers, and sees %s", seen)
		}
		expect(t, agrees(t, o.World, "pod/ubuntu", ifconfig+":80"), `^the destination sees nothing: dropped on fabric .*`+why)
		return
	}
	if err != nil || !regexp.MustCompile(`^`+want+`$`).MatchString(seen) {
		t.Errorf("the internet sees %q, %v, want %s", seen, err, want)
	}
	expect(t, agrees(t, o.World, "pod/ubuntu", ifconfig+":80"), `^the destination sees `+want+`:\d+, after \d translations$`, `^- on .*`+why)
}

// gatewayIP returns the public address of the cluster's NAT gateway.
func (o *outbound) gatewayIP(t *testing.T) string {
	t.Helper()
	ip := strings.TrimSpace(o.Az(t, "network", "public-ip", "list", "--query", "[?natGateway].ipAddress", "-o", "tsv"))
	if ip == "" {
		t.Fatal("no NAT gateway has an address")
	}
	return ip
}

func TestH1(t *testing.T) {
	t.Parallel()
	o := egressWorld(t, "natgateway.yaml")
	if got := o.Az(t, "network", "lb", "list", "--query", "[].name", "-o", "tsv"); got != "" {
		t.Errorf("load balancers without a Service: %q", got)
	}
	ip := o.gatewayIP(t)
	var pods corev1.PodList
	o.Get(t, &pods, "pods", "-l", "app=whereami")
	nodes := map[string]bool{}
	for _, p := range pods.Items {
		nodes[p.Spec.NodeName] = true
		got := o.Run(t, "ssh", "--name", o.Name, "pod/default/"+p.Name, "--", "curl", "-sS", "--max-time", "3", "http://"+ifconfig)
		if strings.TrimSpace(got) != ip {
			t.Errorf("pod on %s appears as %s, want %s", p.Spec.NodeName, got, ip)
		}
	}
	if len(nodes) != 2 {
		t.Errorf("pods on %v", nodes)
	}
	o.seenAs(t, regexp.QuoteMeta(ip), `NAT gateway`)
	o.Kubectl(t, "apply", "-f", o.Example("egress", "service.yaml"))
	t.Cleanup(func() { o.Kubectl(t, "delete", "service", "whereami") })
	vip := o.inForce(t, "whereami")
	seen := o.Capture(t, "client", "eth0", "tcp port 80", func() {
		o.SSH(t, "client", "curl", "-sS", "--max-time", "3", "-o", "/dev/null", "http://"+vip)
	})
	expect(t, seen, `IP `+regexp.QuoteMeta(vip)+`\.80 > 198\.51\.100\.10\.\d+: Flags \[S\.\]`)
	o.seenAs(t, regexp.QuoteMeta(ip), `NAT gateway`)
}

func TestH2(t *testing.T) {
	t.Parallel()
	o := ownEgress(t, "h2")
	o.seenAs(t, `203\.0\.113\.10`, `the load balancer's front end`)
	const node, subnet = "enableNodePublicIP: false", "{name: aks-subnet, prefix: 10.224.0.0/16}"
	o.change(t, node, "enableNodePublicIP: true")
	var own string
	eventually.Succeeds(t, 30*time.Second, func() (err error) {
		if own, err = o.calls(ifconfig); err == nil && own == "203.0.113.10" {
			err = fmt.Errorf("the internet sees %s", own)
		}
		return err
	})
	o.seenAs(t, regexp.QuoteMeta(own), `the machine's own public address`)
	o.change(t, node, "enableNodePublicIP: true", "outboundType: loadBalancer", "outboundType: managedNATGateway")
	o.seenAs(t, regexp.QuoteMeta(o.gatewayIP(t)), `NAT gateway`)
	// Everything to the VM, which has no way to the internet for it.
	o.change(t, node, "enableNodePublicIP: true", "outboundType: loadBalancer", "outboundType: managedNATGateway",
		subnet, "{name: aks-subnet, prefix: 10.224.0.0/16, routeTable: t}", "  azure:\n", `  azure:
    routeTables:
    - name: t
      routes:
      - {name: site, prefix: 198.51.100.80/32, nextHopType: VirtualAppliance, nextHopAddress: 10.225.0.4}
`, "app: nginx", "app: nginx, ipForwarding: true")
	if seen, err := o.calls(ifconfig); err == nil {
		t.Errorf("past the route to the appliance the internet sees %s", seen)
	}
	expect(t, o.Run(t, "walk", "--name", o.Name, "--from", "pod/ubuntu", "--to", ifconfig+":80"), `^vm vm$`)
}

func TestH3(t *testing.T) {
	t.Parallel()
	o := ownEgress(t, "h3")
	end := o.hold(t, usedUp, 1024)
	if seen, err := o.calls(usedUp); err == nil {
		t.Errorf("flow 1,025 of a node to one destination works, from %s", seen)
	}
	end()
	o.change(t, "outboundType: loadBalancer", "outboundType: managedNATGateway")
	_, _ = o.Try(10*time.Second, "ssh", "--name", o.Name, "fabric", "--", "conntrack", "-D", "-d", usedUp)
	o.hold(t, usedUp, 1100)
	if seen, err := o.calls(usedUp); err != nil || seen != o.gatewayIP(t) {
		t.Errorf("flow 1,101: %q, %v", seen, err)
	}
	expect(t, o.Run(t, "status", "--name", o.Name), `(?m)^NAT gateway aks-natgateway-\d+ +110\d +64512 +tcp 198\.51\.100\.81:80: 110\d`)
}

func TestH4(t *testing.T) {
	t.Parallel()
	o := egressWorld(t, "natgateway.yaml")
	if out, err := o.Try(20*time.Second, "kubectl", "--name", o.Name, "exec", "ubuntu", "--", "ping", "-c", "1", "-W", "2", ifconfig); err == nil {
		t.Errorf("ICMP passes:\n%s", out)
	}
	expect(t, o.Run(t, "walk", "--name", o.Name, "--from", "pod/ubuntu", "--to", ifconfig, "--proto", "icmp"),
		`port translation needs ports`)
	// A connection that the gateway has forgotten, as after 4 minutes; the fabric's own test waits for a time-out.
	in, out, _ := o.Talk(t, "pod/default/ubuntu", `exec {fd}<>/dev/tcp/$1/80; echo open; read -r line
{ printf 'GET / HTTP/1.0\r\n\r\n' >&$fd && cat <&$fd >/dev/null; } 2>/tmp/h4 && echo answered || cat /tmp/h4`, ifconfig)
	if line, err := out.ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("%q %v", line, err)
	}
	o.SSH(t, "fabric", "conntrack", "-D", "-p", "tcp", "-d", ifconfig)
	fmt.Fprintln(in, "go")
	if line, err := out.ReadString('\n'); err != nil || !strings.Contains(line, "reset by peer") {
		t.Errorf("a late packet: %q %v, want a reset", line, err)
	}
}

// firewallWorld returns the world behind a firewall with both Services.
func firewallWorld(t *testing.T) *outbound {
	t.Helper()
	o := &outbound{World: world.UpFile(t, "egress", "firewall.yaml", "ubuntu.yaml", "whereami.yaml", "service.yaml", "internal.yaml")}
	o.ready(t)
	return o
}

func (o *outbound) firewallLogs(t *testing.T, line string) {
	t.Helper()
	eventually.Succeeds(t, 30*time.Second, func() error {
		if log := o.Run(t, "logs", "--name", o.Name, "fw"); !regexp.MustCompile(`(?m)` + line + `$`).MatchString(log) {
			return fmt.Errorf("no line %s in the firewall's log:\n%s", line, log)
		}
		return nil
	})
}

func TestH5(t *testing.T) {
	t.Parallel()
	o := firewallWorld(t)
	var node corev1.Node
	o.Get(t, &node, "node", o.pod.Spec.NodeName)
	o.seenAs(t, regexp.QuoteMeta(firewallPublic), `destinations outside private ranges see the firewall`)
	o.firewallLogs(t, ` allow tcp `+regexp.QuoteMeta(node.Status.Addresses[0].Address)+`:\d+ > 198\.51\.100\.80:80 \[SYN\]`)
}

func TestH6(t *testing.T) {
	t.Parallel()
	o := firewallWorld(t)
	vip := o.inForce(t, "whereami")
	if answer, err := asks(o.World, "client", "http://"+vip); err == nil {
		t.Errorf("the public Service answers %q", answer)
	}
	o.firewallLogs(t, ` deny no-connection tcp `+regexp.QuoteMeta(vip)+`:80 > 198\.51\.100\.10:\d+ \[SYN ACK\]`)
	expect(t, agrees(t, o.World, "internet/client", vip+":80"), `the reply does not arrive: dropped on vm fw`)
	o.inForce(t, "internal")
	answer, err := asks(o.World, "client", "http://"+firewallPublic)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, answer, `"your_address": "172\.20\.0\.4"`)
	o.firewallLogs(t, ` dnat tcp 198\.51\.100\.10:\d+ > 10\.224\.255\.100:80 \[SYN\]`)
	agrees(t, o.World, "internet/client", firewallPublic+":80")
}

func TestH7(t *testing.T) {
	t.Parallel()
	o := ownEgress(t, "h7")
	o.change(t, "outboundType: loadBalancer", "outboundType: none")
	o.seenAs(t, "", `no outbound: the subnet is private`)
	o.Kubectl(t, "exec", "ubuntu", "--", "curl", "-sS", "--max-time", "3", "-o", "/dev/null", "http://"+egressVM)
	o.change(t, "outboundType: loadBalancer", "outboundType: none", "enableNodePublicIP: false", "enableNodePublicIP: true")
	o.seenAs(t, `203\.0\.113\.1\d`, `the machine's own public address`)
	o.change(t, "outboundType: loadBalancer", "outboundType: block")
	o.seenAs(t, "", `NSG aks-agentpool-\d+-nsg rule aks-block-outbound`)
	o.Kubectl(t, "get", "nodes")
}
