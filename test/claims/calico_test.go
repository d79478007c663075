package claims

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

// The servers of the Calico article: one in the cluster's VNet, one in a VNet that is peered with it.
const (
	calicoVNet      = "10.240.0.0/16"
	calicoOtherVNet = "172.17.0.0/16"
)

var calicoServers = map[string]string{"server-a": "10.240.0.97", "server-b": "172.17.0.4"}

// calico is the world of the article about Calico and source addresses, with its pod.
type calico struct {
	*world.World
	nodes   []string
	pod     corev1.Pod
	node    string // the pod's
	nodeIP  string
	request atomic.Int64
}

func calicoWorld(t *testing.T) *calico {
	t.Helper()
	c := &calico{World: world.Up(t, "calico", "ubuntu.yaml")}
	c.Kubectl(t, "wait", "--for=condition=Ready", "pod/ubuntu", "--timeout=120s")
	c.Get(t, &c.pod, "pod", "ubuntu")
	c.WaitFelix(t, c.pod)
	var nodes corev1.NodeList
	c.Get(t, &nodes, "nodes")
	for _, n := range nodes.Items {
		c.nodes = append(c.nodes, n.Name)
		if n.Name == c.pod.Spec.NodeName {
			c.node, c.nodeIP = n.Name, n.Status.Addresses[0].Address
		}
	}
	return c
}

// sees asks a server from the pod and gives the source address of the server's log line.
func (c *calico) sees(t *testing.T, server string) string {
	t.Helper()
	path := c.path()
	c.Kubectl(t, "exec", "ubuntu", "--", "curl", "-sS", "--max-time", "5", "-o", "/dev/null", "http://"+calicoServers[server]+path)
	return c.logged(t, server, path)
}

func (c *calico) path() string { return fmt.Sprintf("/?request=%d", c.request.Add(1)) }

// logged gives the source address of the line that a server has logged for a path.
func (c *calico) logged(t *testing.T, server, path string) string {
	t.Helper()
	var source string
	line := regexp.MustCompile(`(?m)^(\S+) - - \[.*\] "[A-Z]+ ` + regexp.QuoteMeta(path) + ` HTTP/1\.1" 200 `)
	eventually.Succeeds(t, 30*time.Second, func() error {
		m := line.FindStringSubmatch(c.Run(t, "logs", "--name", c.Name, "vm/"+server))
		if m == nil {
			return errors.New("the server has not logged the request")
		}
		source = m[1]
		return nil
	})
	return source
}

// heldConnection is a connection from the pod to a server that stays open.
type heldConnection struct {
	*calico
	server, source string
	in             io.Writer
	out            *bufio.Reader
}

func (c *calico) hold(t *testing.T, server string) *heldConnection {
	t.Helper()
	// Each line of input is a path; the answer to a HEAD ends with an empty line.
	script := `exec 3<>/dev/tcp/` + calicoServers[server] + `/80
while read -r path; do
	printf 'HEAD %s HTTP/1.1\r\nHost: server\r\n\r\n' "$path" >&3
	read -r -t 5 status <&3; line=$status
	while [ -n "${line%$'\r'}" ]; do read -r -t 5 line <&3 || break; done
	echo "$status"
done`
	in, out, _ := c.Talk(t, "pod/default/ubuntu", script)
	h := &heldConnection{calico: c, server: server, in: in, out: out}
	h.source = h.ask(t)
	return h
}

// ask sends a request over the connection and gives the source that the server logged.
func (h *heldConnection) ask(t *testing.T) string {
	t.Helper()
	path := h.path()
	if _, err := fmt.Fprintln(h.in, path); err != nil {
		t.Fatal(err)
	}
	status, err := h.out.ReadString('\n')
	if err != nil || !strings.Contains(status, " 200 ") {
		t.Fatalf("over a connection of before: %q, %v", status, err)
	}
	return h.logged(t, h.server, path)
}

// goesOn: the connection is not cut, and its source stays what it was.
func (h *heldConnection) goesOn(t *testing.T) {
	t.Helper()
	if got := h.ask(t); got != h.source {
		t.Errorf("%s sees %s over a connection that began as %s", h.server, got, h.source)
	}
}

func (c *calico) expectSeen(t *testing.T, server, want string) {
	t.Helper()
	if got := c.sees(t, server); got != want {
		t.Errorf("%s sees %s, want %s", server, got, want)
	}
}

// members returns the members of an IP set on a node, sorted.
func (c *calico) members(t *testing.T, node, set string) []string {
	t.Helper()
	_, after, ok := strings.Cut(c.SSH(t, node, "ipset", "list", set), "Members:\n")
	if !ok {
		t.Fatalf("no members of %s on %s", set, node)
	}
	return slices.Sorted(strings.FieldsSeq(after))
}

// pools waits until both sets of every node have these members: "within seconds".
func (c *calico) pools(t *testing.T, want ...string) {
	t.Helper()
	eventually.Succeeds(t, 30*time.Second, func() error {
		for _, node := range c.nodes {
			for _, set := range []string{"cali40masq-ipam-pools", "cali40all-ipam-pools"} {
				if got := c.members(t, node, set); !slices.Equal(got, want) {
					return fmt.Errorf("%s on %s has %v, want %v", set, node, got, want)
				}
			}
		}
		return nil
	})
}

// withOtherVNet runs f while the pool of the other VNet is there.
func (c *calico) withOtherVNet(t *testing.T, f func()) {
	t.Helper()
	manifest := c.Example("calico", "othervnet.yaml")
	c.Kubectl(t, "apply", "-f", manifest)
	defer func() {
		c.Kubectl(t, "delete", "-f", manifest)
		c.pools(t, calicoVNet)
	}()
	c.pools(t, calicoVNet, calicoOtherVNet)
	f()
}

func (c *calico) chain(t *testing.T, name string) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(c.SSH(t, c.node, "iptables", "-t", "nat", "-L", name)), "\n")
	return lines[2:] // behind the chain's name and the columns'
}

func TestC1(t *testing.T) {
	t.Parallel()
	c := calicoWorld(t)
	c.expectSeen(t, "server-a", c.pod.Status.PodIP)
}

func TestC2(t *testing.T) {
	t.Parallel()
	c := calicoWorld(t)
	c.expectSeen(t, "server-b", c.nodeIP)
	out := c.Run(t, "walk", "--name", c.Name, "--from", "pod/ubuntu", "--to", "vm/server-b:80", "--live")
	expect(t, out, `^the destination sees `+regexp.QuoteMeta(c.nodeIP)+
		`:.* because nat cali-nat-outgoing 1: MASQUERADE .*Calico pool default-ipv4-ippool`, `^kernel: (\d+) of (\d+) steps agree$`)
}

func TestC3(t *testing.T) {
	t.Parallel()
	c := calicoWorld(t)
	for _, node := range c.nodes {
		lines := strings.Split(strings.TrimSpace(c.SSH(t, node, "iptables", "-t", "nat", "-L", "POSTROUTING")), "\n")[2:]
		if len(lines) != 2 {
			t.Fatalf("%s: POSTROUTING has %d rules, want 2:\n%s", node, len(lines), strings.Join(lines, "\n"))
		}
		expect(t, lines[0], `^cali-POSTROUTING +all +-- +anywhere +anywhere +/\* cali:O3lYWMrLQYEMJtB5 \*/$`)
		expect(t, lines[1], `^KUBE-POSTROUTING +all +-- +anywhere +anywhere +/\* kubernetes postrouting rules \*/$`)
		if saved := c.SSH(t, node, "iptables-save", "-t", "nat"); strings.Contains(saved, "IP-MASQ-AGENT") {
			t.Errorf("%s has an ip-masq-agent:\n%s", node, saved)
		}
	}
	if pods := c.Kubectl(t, "get", "pods", "-A"); strings.Contains(pods, "ip-masq") {
		t.Errorf("an ip-masq-agent runs:\n%s", pods)
	}
}

func TestC4(t *testing.T) {
	t.Parallel()
	c := calicoWorld(t)
	rules := c.chain(t, "cali-POSTROUTING")
	if len(rules) != 2 {
		t.Fatalf("cali-POSTROUTING has %d rules: %q", len(rules), rules)
	}
	expect(t, rules[0], `^cali-fip-snat +all +-- +anywhere +anywhere +/\* cali:Z-c7XtVd2Bq7s_hA \*/$`)
	expect(t, rules[1], `^cali-nat-outgoing +all +-- +anywhere +anywhere +/\* cali:nYKhEzDlr11Jccal \*/$`)
	if rules := c.chain(t, "cali-fip-snat"); len(rules) != 0 {
		t.Errorf("cali-fip-snat has %q", rules)
	}
}

func TestC5(t *testing.T) {
	t.Parallel()
	c := calicoWorld(t)
	rules := c.chain(t, "cali-nat-outgoing")
	if len(rules) != 1 {
		t.Fatalf("cali-nat-outgoing has %d rules: %q", len(rules), rules)
	}
	// The article's iptables does not print random-fully, which its rule has: felix's hash is made of it.
	expect(t, rules[0], `^MASQUERADE +all +-- +anywhere +anywhere +/\* cali:flqWnvo8yq4ULQLa \*/ match-set cali40masq-ipam-pools src ! match-set cali40all-ipam-pools dst( random-fully)?$`)
}

func TestC6(t *testing.T) {
	t.Parallel()
	c := calicoWorld(t)
	expect(t, c.SSH(t, c.node, "ipset", "list", "cali40masq-ipam-pools"),
		`^Name: cali40masq-ipam-pools$`, `^Type: hash:net$`, `^Header: family inet hashsize 1024 maxelem 1048576( |$)`, `^References: 1$`,
		`^Number of entries: 1$`)
	if diff := cmp.Diff([]string{calicoVNet}, c.members(t, c.node, "cali40masq-ipam-pools")); diff != "" {
		t.Error(diff)
	}
}

func TestC7(t *testing.T) {
	t.Parallel()
	c := calicoWorld(t)
	expect(t, c.Kubectl(t, "get", "ippools"), `^NAME +AGE$`, `^default-ipv4-ippool +\S+$`)
	var pool struct {
		APIVersion string
		Kind       string
		Spec       map[string]any
	}
	c.Get(t, &pool, "ippool", "default-ipv4-ippool")
	if pool.APIVersion != "crd.projectcalico.org/v1" || pool.Kind != "IPPool" {
		t.Errorf("it is a %s of %s", pool.Kind, pool.APIVersion)
	}
	want := map[string]any{"blockSize": float64(26), "cidr": calicoVNet, "ipipMode": "Never", "natOutgoing": true}
	if diff := cmp.Diff(want, pool.Spec); diff != "" {
		t.Errorf("spec (-article +here):\n%s", diff)
	}
}

func TestC8(t *testing.T) {
	t.Parallel()
	c := calicoWorld(t)
	c.withOtherVNet(t, func() {
		expect(t, c.Kubectl(t, "get", "ippools"), `^default-ipv4-ippool +\S+$`, `^othervnet +\S+$`)
	})
}

func TestC9(t *testing.T) {
	t.Parallel()
	c := calicoWorld(t)
	before := c.hold(t, "server-b")
	if before.source != c.nodeIP {
		t.Errorf("server-b sees %s, want %s", before.source, c.nodeIP)
	}
	var during *heldConnection
	c.withOtherVNet(t, func() {
		c.expectSeen(t, "server-b", c.pod.Status.PodIP)
		c.expectSeen(t, "server-a", c.pod.Status.PodIP)
		out := c.Run(t, "walk", "--name", c.Name, "--from", "pod/ubuntu", "--to", "vm/server-b:80", "--live")
		expect(t, out, `^the destination sees the sender's own address, `, `^- nat cali-nat-outgoing 1 .*Calico pool othervnet`,
			`^kernel: (\d+) of (\d+) steps agree$`)
		during = c.hold(t, "server-b")
		before.goesOn(t)
	})
	c.expectSeen(t, "server-b", c.nodeIP)
	before.goesOn(t)
	during.goesOn(t)
}
