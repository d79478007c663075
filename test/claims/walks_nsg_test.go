package claims

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

const (
	vmPublic   = "203.0.113.3"
	nodesGroup = "aks-agentpool-31351229-nsg"
)

// security is the world of examples/azure-cni/nsg.yaml.
type security struct {
	*world.World
	node string
}

// walk walks live and wants each text in the output, and none of those after a !.
func (s *security) walk(t *testing.T, from, to string, want ...string) {
	t.Helper()
	out := live(t, s.World, "--from", from, "--to", to)
	for _, w := range want {
		not := strings.HasPrefix(w, "!")
		if strings.Contains(out, strings.TrimPrefix(w, "!")) == not {
			t.Errorf("%s → %s: %q\n%s", from, to, w, out)
		}
	}
}

// rules returns the rules of the nodes' group, as name and priority.
func (s *security) rules(t *testing.T) string {
	t.Helper()
	return s.Az(t, "network", "nsg", "rule", "list", "-g", "MC_akstest_aksPacketWalkAzure_westeurope", "--nsg-name", nodesGroup,
		"--query", "[].[name,priority,sourceAddressPrefix,destinationAddressPrefix]", "-o", "tsv")
}

// onlyRule waits until the nodes' group has one rule, of the cloud provider's and with these fields, and returns its name.
func (s *security) onlyRule(t *testing.T, fields string) (name string) {
	t.Helper()
	eventually.Succeeds(t, 20*time.Second, func() error {
		rules := s.rules(t)
		var rest string
		name, rest, _ = strings.Cut(strings.TrimSpace(rules), "\t")
		if rest != fields || !strings.HasPrefix(name, "k8s-azure-lb_allow_IPv4_") {
			return fmt.Errorf("rules %q, want one with %q", rules, fields)
		}
		return nil
	})
	return name
}

// curl asks for the page and reports whether there was an answer.
func (s *security) curl(host, address string) error {
	_, err := s.Try(20*time.Second, "ssh", "--name", s.Name, host, "--", "curl", "-sS", "-o", "/dev/null", "--max-time", "2",
		"http://"+address)
	return err
}

// TestSecurityGroups: what subnets', NICs' and the nodes' groups let through and what not, as walks and the kernel see it, and as it
// changes.
func TestSecurityGroups(t *testing.T) {
	t.Parallel()
	s := &security{World: world.UpFile(t, "azure-cni", "nsg.yaml")}
	var nodes corev1.NodeList
	s.Get(t, &nodes, "nodes")
	s.node = nodes.Items[0].Name
	t.Run("VM", s.vm)
	t.Run("Service", s.service)
	t.Run("Change", s.change)
	t.Run("SDK", s.sdk)
	t.Run("Azure", s.azure)
}

// vm: both groups are asked, the subnet's first; the first that denies decides; answers need no rule.
func (s *security) vm(t *testing.T) {
	s.walk(t, "internet/client", vmPublic+":80", "NSG vms rule web (300) allows", "NSG testvm rule web (200) allows", "the reply")
	s.walk(t, "internet/client", vmPublic+":22", "NSG vms rule DenyAllInBound (65500) denies", "!NSG testvm")
	s.walk(t, "internet/ifconfig.co", vmPublic+":80", "NSG vms rule web (300) allows", "NSG testvm rule not-ifconfig (100) denies")
	s.walk(t, "vm/testvm", "internet/ifconfig.co:80", "NSG testvm rule AllowInternetOutBound (65001) allows",
		"NSG vms rule AllowInternetOutBound (65001) allows", "the reply")
	if err := s.curl("testvm", "ifconfig.co"); err != nil {
		t.Error("the answer to what the VM asks for is not let in:", err)
	}
	s.walk(t, "node/"+s.node, "vm/testvm:80", "notrack", "the reply")
	s.walk(t, "vm/testvm", "node/"+s.node+":10256", "notrack", "the reply")
}

// service: the nodes' group is closed, opened by a Service for its clients, and closed again.
func (s *security) service(t *testing.T) {
	if r := strings.TrimSpace(s.rules(t)); r != "" {
		t.Errorf("rules before any Service: %s", r)
	}
	s.Kubectl(t, "apply", "-f", s.Example("azure-cni", "whereami.yaml"))
	s.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	service := s.WaitService(t, "default", "whereami")
	vip := service.Status.LoadBalancer.Ingress[0].IP
	name := s.onlyRule(t, "500\tInternet\t"+vip)
	s.walk(t, "internet/client", "svc/whereami", "NSG "+nodesGroup+" rule "+name+" (500) allows", "the reply")
	s.walk(t, "vm/testvm", fmt.Sprintf("node/%s:%d", s.node, service.Spec.Ports[0].NodePort), "the reply")

	s.Kubectl(t, "patch", "service", "whereami", "-p", `{"spec":{"loadBalancerSourceRanges":["198.51.100.80/32"]}}`)
	name = s.onlyRule(t, "501\t198.51.100.80/32\t"+vip)
	s.walk(t, "internet/client", vip+":80", "NSG "+nodesGroup+" rule DenyAllInBound (65500) denies")
	s.walk(t, "internet/ifconfig.co", vip+":80", "rule "+name+" (501) allows", "the reply")

	s.Kubectl(t, "delete", "service", "whereami")
	eventually.Succeeds(t, 20*time.Second, func() error {
		if r := strings.TrimSpace(s.rules(t)); r != "" {
			return fmt.Errorf("rules after the Service: %s", r)
		}
		return nil
	})
}

// change: a rule that comes at run time holds for new flows, and cuts none that has begun, tracked until then or not.
func (s *security) change(t *testing.T) {
	talks := map[string]*talk{}
	for host, to := range map[string]string{"client": vmPublic, s.node: "10.13.1.4"} {
		talks[host] = s.talk(t, host, to)
	}
	file, err := os.ReadFile(s.Example("azure-cni", "nsg.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const before = "      - {name: web, priority: 300,"
	with := strings.Replace(string(file), before,
		"      - {name: closed, priority: 150, direction: Inbound, access: Deny, protocol: Tcp, destinationPortRanges: [\"80\"]}\n"+before, 1)
	changed := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(changed, []byte(with), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := s.Run(t, "up", "--name", s.Name, "-f", changed); !strings.Contains(out, "spec.azure.networkSecurityGroups[vms].rules[closed]") {
		t.Errorf("the change is not told:\n%s", out)
	}
	s.walk(t, "internet/client", vmPublic+":80", "NSG vms rule closed (150) denies")
	s.walk(t, "node/"+s.node, "vm/testvm:80", "NSG "+nodesGroup+" rule AllowVnetOutBound (65000) allows", "NSG vms rule closed (150) denies")
	s.walk(t, "node/"+s.node, "vm/testvm:22", "NSG vms rule AllowVnetInBound (65000) allows",
		"NSG testvm rule AllowVnetInBound (65000) allows")
	for host, k := range talks {
		if err := k.ask(); err != nil {
			t.Errorf("%s: a flow that had begun is cut: %v", host, err)
		}
		if err := s.curl(host, k.to); err == nil {
			t.Errorf("%s: a new flow is let through", host)
		}
	}
	s.Run(t, "up", "--name", s.Name, "-f", s.Example("azure-cni", "nsg.yaml"))
	for host, k := range talks {
		if err := k.ask(); err != nil {
			t.Errorf("%s: a flow that had begun is cut when the rule goes: %v", host, err)
		}
		if err := s.curl(host, k.to); err != nil {
			t.Error(host, err)
		}
	}
}

// A talk is a connection that stays open and on which one page after the other is asked for.
type talk struct {
	to    string
	in    io.WriteCloser
	lines chan string
}

func (s *security) talk(t *testing.T, host, to string) *talk {
	t.Helper()
	// Each line of standard input is a request; the status line of its answer is printed.
	const script = `exec 3<>/dev/tcp/$0/80; while read -r _; do printf 'HEAD / HTTP/1.1\r\nHost: x\r\n\r\n' >&3
		while read -r line <&3; do case "$line" in HTTP*) echo "$line";; $'\r') break;; esac; done; done`
	c := s.Command("ssh", "--name", s.Name, host, "--", "bash", "-c", script, to)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	k := &talk{to: to, in: in, lines: make(chan string, 8)}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			k.lines <- lines.Text()
		}
		close(k.lines)
	}()
	t.Cleanup(func() {
		in.Close()
		c.Process.Kill()
		c.Wait()
	})
	if err := k.ask(); err != nil {
		t.Fatalf("%s → %s: %v", host, to, err)
	}
	return k
}

// ask asks for the page once more.
func (k *talk) ask() error {
	if _, err := io.WriteString(k.in, "\n"); err != nil {
		return err
	}
	select {
	case line, ok := <-k.lines:
		if !ok || !strings.HasPrefix(line, "HTTP/1.1 200") {
			return fmt.Errorf("answer %q", line)
		}
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("no answer")
	}
}
