package claims

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// azure shows that a walk through the lab and one through a capture of its machines, which goes on by what az shows of Azure's side, end
// alike: with a route to a firewall, peered networks, a front end with floating IP, and what is unknown of both.
func (s *security) azure(t *testing.T) {
	s.Run(t, "up", "--name", s.Name, "-f", "testdata/azure.yaml")
	t.Cleanup(func() { s.Run(t, "up", "--name", s.Name, "-f", s.Example("azure-cni", "nsg.yaml")) })
	s.Kubectl(t, "apply", "-f", s.Example("azure-cni", "whereami.yaml"))
	t.Cleanup(func() { s.Kubectl(t, "delete", "service", "whereami") })
	s.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	vip := s.WaitService(t, "default", "whereami").Status.LoadBalancer.Ingress[0].IP
	pods := s.Pods(t, "-l", "app=whereami")
	pod := "pod/" + pods[0].Name

	capture, files := s.save(t, pods)
	// From, to and the protocol, and what ends are: the same in both.
	for name, c := range map[string]struct{ from, to, proto, want string }{
		"route to a firewall":                {pod, "198.51.100.80:443", "", "dropped fabric"}, // which translates nothing
		"route past the firewall":            {pod, "198.51.100.10:443", "", "outside"},
		"route from a node":                  {"node/" + s.node, "198.51.100.80:443", "", "dropped fabric"},
		"route to the API server":            {"node/" + s.node, "203.0.113.1:443", "", "outside"},
		"private destination":                {pod, "10.99.0.1:80", "", "dropped fabric"},
		"public address by the firewall":     {pod, vmPublic + ":80", "", "dropped fabric"},
		"peering by the firewall":            {pod, "vm/database:80", "", "delivered vm/database"},
		"peering with a route back":          {"vm/database", pod + ":80", "", "delivered pod/default/" + pods[0].Name},
		"peering with a node":                {"vm/database", "node/" + s.node + ":10256", "", "delivered node/" + s.node},
		"peering of UDP":                     {pod, "vm/database:80", "udp", "delivered vm/database"},
		"within the network":                 {"vm/testvm", pod + ":80", "", "delivered pod/default/" + pods[0].Name},
		"denied by the machine's group":      {pod, "vm/testvm:22", "udp", "delivered vm/testvm"},
		"floating IP, a client with a route": {"internet/client", vip + ":80", "", "delivered pod/default/whereami"},
		"floating IP, another client":        {"internet/ifconfig.co", vip + ":80", "", "delivered pod/default/whereami"},
		"floating IP, another protocol":      {"internet/client", vip + ":80", "udp", "dropped fabric"},
		"public address of a machine":        {"internet/client", vmPublic + ":80", "", "delivered vm/testvm"},
		"denied client":                      {"internet/ifconfig.co", vmPublic + ":80", "", "dropped fabric"},
		"tag Internet":                       {pod, "198.51.100.80:8080", "", "dropped fabric"},
		"tag Internet, route past":           {pod, "198.51.100.10:8080", "", "dropped fabric"},
		"name server":                        {pod, "168.63.129.16:53", "udp", "delivered fabric"},
	} {
		t.Run(name, func(t *testing.T) {
			to := []string{"--to", c.to, "--proto", cmp.Or(c.proto, "tcp"), "-o", "json"}
			own := s.ends(t, append([]string{"--name", s.Name, "--from", c.from}, to...))
			from := []string{"--from", c.from}
			if address := map[string]string{"internet/client": "198.51.100.10", "internet/ifconfig.co": "198.51.100.80"}[c.from]; address != "" {
				from = []string{"--from", address, "--at", "fabric"}
			}
			azure := s.ends(t, slices.Concat([]string{"--snapshot", capture, "--azure=" + files}, from, to))
			if !slices.Equal(own, azure) {
				t.Errorf("the lab's walk ends\n%s\nthe one by az's files\n%s", strings.Join(own, "\n"), strings.Join(azure, "\n"))
			}
			if len(own) == 0 || !strings.HasPrefix(own[0], c.want) {
				t.Errorf("ends %q, want %q", own, c.want)
			}
		})
	}
	t.Run("unknown", func(t *testing.T) {
		for _, args := range [][]string{{"--name", s.Name}, {"--snapshot", capture, "--azure=" + files}} {
			out, err := s.Try(walkLimit, append([]string{"walk", "--from", pod, "--to", "198.51.100.80:8080"}, args...)...)
			if err == nil || !strings.Contains(out, "[unknown: ") || !strings.Contains(out, "service tag Internet holds the public addresses of") {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
	})
}

// save writes a capture of the lab's machines and pods, without Azure's network, and what az prints of that.
func (s *security) save(t *testing.T, pods []corev1.Pod) (capture, files string) {
	t.Helper()
	dir := t.TempDir()
	capture, files = filepath.Join(dir, "machines.pwcap.tar.gz"), filepath.Join(dir, "azure")
	if err := os.Mkdir(files, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"network lb", "network nsg", "network public-ip", "network route-table", "network nic", "network vnet", "aks"} {
		out := s.Az(t, append(strings.Fields(kind), "list", "-o", "json")...)
		name := filepath.Join(files, strings.ReplaceAll(kind, " ", "-")+".json")
		if err := os.WriteFile(name, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hosts := []string{"vm/testvm", "vm/firewall", "vm/database"}
	var nodes corev1.NodeList
	s.Get(t, &nodes, "nodes")
	for _, n := range nodes.Items {
		hosts = append(hosts, "node/"+n.Name)
	}
	for _, p := range pods {
		hosts = append(hosts, "pod/default/"+p.Name)
	}
	s.Run(t, append([]string{"capture", "--name", s.Name, "-o", capture}, hosts...)...)
	return capture, files
}

// end is where a packet's way ended, as "walk -o json" has it.
type end struct {
	Kind, Node, Why string
	Packet          struct {
		SrcIP, DstIP     string
		SrcPort, DstPort any
	}
}

// String returns the end without what differs: on the internet the lab has hosts and the API server, and a capture has none; a Standard
// load balancer's ports are Azure's choice.
func (e *end) String() string {
	p := e.Packet
	switch {
	case e.Kind == "":
		return "none"
	case strings.HasPrefix(e.Node, "internet/"), e.Node == "controlplane", e.Why == "through internet":
		return fmt.Sprintf("outside %s > %s:%v", p.SrcIP, p.DstIP, p.DstPort)
	}
	return fmt.Sprintf("%s %s %s:%v > %s:%v", e.Kind, e.Node, p.SrcIP, p.SrcPort, p.DstIP, p.DstPort)
}

// ends returns the different ends of a walk's outcomes, each with that of the reply.
func (s *security) ends(t *testing.T, args []string) []string {
	t.Helper()
	out, err := s.Try(walkLimit, append([]string{"walk"}, args...)...)
	var doc struct {
		Outcomes []struct{ End, ReplyEnd end }
	}
	if jsonErr := json.Unmarshal([]byte(out), &doc); jsonErr != nil {
		t.Fatal(err, jsonErr)
	}
	all := map[string]bool{}
	for _, o := range doc.Outcomes {
		all[fmt.Sprintf("%s, reply %s", &o.End, &o.ReplyEnd)] = true
	}
	return slices.Sorted(maps.Keys(all))
}
