package claims

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/test/world"
)

const internalLB = `service.beta.kubernetes.io/azure-load-balancer-internal: "true"`

// nodes returns the cluster's nodes, their addresses by their names.
func (s standard) nodes(t *testing.T) map[string]string {
	t.Helper()
	var list corev1.NodeList
	s.Get(t, &list, "nodes")
	all := map[string]string{}
	for _, n := range list.Items {
		all[n.Name] = n.Status.Addresses[0].Address
	}
	return all
}

// ask has a host ask a URL of whereami once.
func (s standard) ask(t *testing.T, host, url string) (answer whereami) {
	t.Helper()
	out, err := asks(s.World, host, "-f", url)
	if err == nil {
		err = json.Unmarshal([]byte(out), &answer)
	}
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// captureAll captures on several hosts while during runs, on each until a match of its pattern has come, and returns each one's lines.
func captureAll(t *testing.T, w *world.World, hosts []string, filter string, patterns map[string]string, during func()) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, host := range hosts {
		inner := during
		during = func() { all[host] = w.CaptureUntil(t, host, "eth0", filter, inner, patterns[host]) }
	}
	during()
	return all
}

func TestG6(t *testing.T) {
	t.Parallel()
	s := sharedProbeWorld(t)
	const shared = "cluster-service-shared-health-probe"
	s.apply(t, "both", "", "ports: [{name: a, port: 80}, {name: u, port: 53, protocol: UDP}]")
	s.apply(t, "local", "", "externalTrafficPolicy: Local, ports: [{port: 80}]")
	s.apply(t, "empty", "", "selector: {app: none}, ports: [{port: 80}]")
	s.inForce(t, "both")
	s.inForce(t, "local")
	empty := s.frontend(t, "empty")
	probes := s.of(t, "kubernetes", "probe", "")
	same(t, "the probe", probes[shared], fields{"protocol": "Http", "port": 10256.0, "requestPath": "/healthz", "intervalInSeconds": 5.0,
		"probeThreshold": 2.0})
	if len(probes) != 2 {
		t.Errorf("the probes are %v, want the shared one and the Local Service's", probes)
	}
	refer := map[string]int{}
	for _, r := range s.of(t, "kubernetes", "rule", "") {
		refer[r.ref("probe")]++
	}
	if refer[shared] != 4 || len(refer) != 2 {
		t.Errorf("rules by their probe: %v, want 4 with the shared one", refer)
	}
	// A node without an endpoint takes the packet, and kube-proxy refuses it. By its node port no node would be up.
	eventually.Succeeds(t, 30*time.Second, func() error {
		const refused = "exit status 7" // curl's; it is 28 after a time-out
		if out, err := asks(s.World, "client", "http://"+empty); err == nil || !strings.Contains(err.Error(), refused) {
			return fmt.Errorf("a Service without endpoints answers %q, %w", out, err)
		}
		return nil
	})
	s.drains(t)
}

// drains shows that a node which the cluster autoscaler is about to delete gets no new flows, and keeps those that it has.
func (s standard) drains(t *testing.T) {
	t.Helper()
	nodes := s.nodes(t)
	in, out, _ := s.Talk(t, "client", `exec {fd}<>/dev/tcp/$1/80
while read -r line; do
  printf 'GET / HTTP/1.1\r\nHost: x\r\n\r\n' >&$fd
  while read -r -t 5 answer <&$fd && [ "$answer" != "}" ]; do case "$answer" in *your_address*) echo "$answer";; esac; done
done`, s.vip)
	node := func() string {
		fmt.Fprintln(in, "ask")
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatalf("the established connection: %q %v", line, err)
		}
		for name, address := range nodes {
			if strings.Contains(line, `"`+address+`"`) {
				return name
			}
		}
		t.Fatalf("the back end sees %q, none of %v", line, nodes)
		return ""
	}
	leaving := node()
	s.Kubectl(t, "taint", "node", leaving, "ToBeDeletedByClusterAutoscaler=now:NoSchedule")
	began := time.Now()
	quiet := 0
	for quiet < 20 {
		answer, err := who(s.World, "http://"+s.vip)
		if err != nil || answer.Caller == nodes[leaving] {
			if time.Since(began) > time.Minute {
				t.Fatalf("%v after the taint a new flow has %+v, %v", time.Since(began), answer, err)
			}
			quiet = 0
			continue
		}
		quiet++
	}
	if got := node(); got != leaving {
		t.Errorf("the established connection moved from %s to %s", leaving, got)
	}
	pool := s.of(t, "kubernetes", "address-pool", "kubernetes")["kubernetes"]
	if members, _ := pool["backendIpConfigurations"].([]any); len(members) != len(nodes) {
		t.Errorf("the pool has %d members, not all %d nodes: the probe alone takes a node out", len(members), len(nodes))
	}
	s.Kubectl(t, "taint", "node", leaving, "ToBeDeletedByClusterAutoscaler-")
}

// sharedProbeWorld makes a lab of outbound/standard.yaml with a shared probe, which only the test has.
func sharedProbeWorld(t *testing.T) standard {
	t.Helper()
	s := standard{outbound: &outbound{World: world.Own(t, "g6")}}
	text, err := os.ReadFile(s.Example("outbound", "standard.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const sku = "    sku: standard\n"
	with := strings.Replace(string(text), sku, sku+"    clusterServiceLoadBalancerHealthProbeMode: shared\n", 1)
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(with), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.Try(2*time.Minute, "down", "--name", s.Name) })
	if _, err := s.Try(5*time.Minute, "up", "--name", s.Name, "-f", file); err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "apply", "-f", s.Example("outbound", "whereami.yaml"))
	s.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	s.vip = s.inForce(t, "whereami")
	s.group = strings.TrimSpace(s.Az(t, "network", "lb", "list", "--query", "[0].resourceGroup", "-o", "tsv"))
	return s
}

func TestG8(t *testing.T) {
	t.Parallel()
	s := standardWorld(t)
	nodes := s.nodes(t)
	names := make([]string, 0, len(nodes))
	for name := range nodes {
		names = append(names, name)
	}
	for _, policy := range []string{"Cluster", "Local"} {
		t.Run(policy, func(t *testing.T) {
			_, vip := s.service(t, "inner-"+strings.ToLower(policy), "annotations: {"+internalLB+"}",
				"externalTrafficPolicy: "+policy+", ports: [{port: 80}]")
			var answer whereami
			seen := captureAll(t, s.World, names, "tcp port 80 and dst host "+vip, nil, func() { answer = s.ask(t, "testvm", "http://"+vip) })
			request := regexp.MustCompile(`IP 10\.13\.1\.4\.\d+ > ` + regexp.QuoteMeta(vip) + `\.80: Flags \[S\]`)
			names := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !request.MatchString(seen[n]) })
			if len(names) != 1 {
				t.Fatalf("%d nodes get the request to the front end: %v", len(names), seen)
			}
			want := map[string]string{"Cluster": nodes[names[0]], "Local": outboundVM}[policy]
			if answer.Caller != want {
				t.Errorf("the pod sees %s, want %s", answer.Caller, want)
			}
			agrees(t, s.World, "vm/testvm", vip+":80")
		})
	}
}

func TestG9(t *testing.T) {
	t.Parallel()
	s := standardWorld(t)
	s.Get(t, &s.pod, "pod", "ubuntu")
	node := s.pod.Spec.NodeName
	for _, front := range []string{"", internalLB} {
		for policy, want := range map[string]string{"Cluster": s.nodes(t)[node], "Local": s.pod.Status.PodIP} {
			t.Run(fmt.Sprintf("internal=%t,%s", front != "", policy), func(t *testing.T) {
				_, vip := s.service(t, "own", "annotations: {"+front+"}", "externalTrafficPolicy: "+policy+", ports: [{port: 80}]")
				var answer whereami
				// An internal front end is in the pod's subnet. The pod may ask for its neighbour's address, by the bridge that eth0 is at.
				seen := s.Capture(t, node, "eth0", fmt.Sprintf("ip and (host %s or host %s)", vip, ifconfig), func() {
					answer = s.ask(t, hostOf(s.pod), "http://"+vip)
					if _, err := s.calls(ifconfig); err != nil {
						t.Error(err)
					}
				})
				expect(t, seen, ` > 198\.51\.100\.80\.80: Flags \[S\]`)
				if strings.Contains(seen, vip) {
					t.Errorf("packets of the front end are on eth0:\n%s", seen)
				}
				if answer.Caller != want {
					t.Errorf("the endpoint sees %s, want %s", answer.Caller, want)
				}
				agrees(t, s.World, "pod/ubuntu", vip+":80")
			})
		}
	}
}

// manager calls Azure Resource Manager of the lab, from the VM.
func (s standard) manager(t *testing.T, method, id, body string) string {
	t.Helper()
	token, err := os.ReadFile(filepath.Join("/run/packetwalk", s.Name, "pki", "azure-token"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.TryInput(20*time.Second, body, "ssh", "--name", s.Name, "testvm", "--", "curl", "-sSkf", "--max-time", "15", "-X", method,
		"-H", "Authorization: Bearer "+strings.TrimSpace(string(token)), "-H", "Content-Type: application/json", "--data-binary", "@-",
		"https://198.51.100.2"+id+"?api-version=2024-05-01")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ownBalancer makes an internal load balancer with all nodes as back ends, whose port 8080 leads to another port of theirs, until the test
// ends. It returns its front end's address.
func (s standard) ownBalancer(t *testing.T, port int) string {
	t.Helper()
	text := func(query ...string) string { return strings.TrimSpace(s.Az(t, append(query, "-o", "tsv")...)) }
	lb := strings.Replace(text("network", "lb", "list", "--query", "[?name=='kubernetes'].id"), "/kubernetes", "/own", 1)
	subnet := text("network", "nic", "list", "-g", s.group, "--query", "[0].ipConfigurations[0].subnet.id")
	s.manager(t, "PUT", lb, fmt.Sprintf(`{"location": "westeurope", "sku": {"name": "Standard"}, "properties": {
		"frontendIPConfigurations": [{"name": "front", "properties": {"subnet": {"id": %q}}}],
		"backendAddressPools": [{"name": "pool"}],
		"loadBalancingRules": [{"name": "rule", "properties": {"protocol": "Tcp", "frontendPort": 8080, "backendPort": %d,
			"frontendIPConfiguration": {"id": "%[3]s/frontendIPConfigurations/front"},
			"backendAddressPool": {"id": "%[3]s/backendAddressPools/pool"}}}]}}`, subnet, port, lb))
	t.Cleanup(func() { s.manager(t, "DELETE", lb, "") })
	for id := range strings.Lines(text("network", "nic", "list", "-g", s.group, "--query", "[].id")) {
		id = strings.TrimSpace(id)
		before := s.manager(t, "GET", id, "")
		s.manager(t, "PUT", id, withPool(t, before, lb+"/backendAddressPools/pool"))
		t.Cleanup(func() { s.manager(t, "PUT", id, before) })
	}
	return text("network", "lb", "frontend-ip", "list", "-g", s.group, "--lb-name", "own", "--query", "[0].privateIpAddress")
}

// withPool adds a back-end pool to the primary IP configuration of an interface.
func withPool(t *testing.T, nic, pool string) string {
	t.Helper()
	var resource fields
	if err := json.Unmarshal([]byte(nic), &resource); err != nil {
		t.Fatal(err)
	}
	properties := resource["properties"].(map[string]any)
	config := properties["ipConfigurations"].([]any)[0].(map[string]any)["properties"].(map[string]any)
	pools, _ := config["loadBalancerBackendAddressPools"].([]any)
	config["loadBalancerBackendAddressPools"] = append(pools, map[string]any{"id": pool})
	text, err := json.Marshal(resource)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestG10(t *testing.T) {
	t.Parallel()
	s := standardWorld(t)
	const port = 10256 // where kube-proxy tells its health
	vip := s.ownBalancer(t, port)
	s.ask(t, "testvm", "http://"+vip+":8080/healthz") // no probe, so each flow works
	nodes := s.nodes(t)
	var name string
	for name = range nodes {
	}
	own := regexp.QuoteMeta(nodes[name])
	var flows string
	seen := s.Capture(t, name, "eth0", "tcp[tcpflags] & tcp-syn != 0 and (port 8080 or port "+fmt.Sprint(port)+")", func() {
		flows = s.SSH(t, name, "bash", "-c",
			`for i in $(seq 24); do curl -s -o /dev/null --connect-timeout 1 http://$0:8080/healthz && echo works || echo fails; done`, vip)
	})
	if works, fails := strings.Count(flows, "works"), strings.Count(flows, "fails"); works == 0 || fails == 0 {
		t.Errorf("of a back end's flows to its front end %d work and %d fail, want some of both", works, fails)
	}
	// One that comes back has the node's own address as its source.
	expect(t, seen, `IP `+own+`\.\d+ > `+regexp.QuoteMeta(vip)+`\.8080: Flags \[S\]`,
		fmt.Sprintf(`IP %s\.\d+ > %[1]s\.%d: Flags \[S\]`, own, port))
	expect(t, s.Run(t, "walk", "--name", s.Name, "--from", "node/"+name, "--to", vip+":8080"), `dropped on node `+name, `the destination sees`)
}

func TestG13(t *testing.T) {
	t.Parallel()
	s := standardWorld(t)
	// socat sends no keepalives, other than servers in Go.
	s.Kubectl(t, "run", "echo", "--image=nicolaka/netshoot", "--labels=app=echo", "--command", "--", "socat", "TCP-LISTEN:7,fork,reuseaddr", "PIPE")
	t.Cleanup(func() { s.Kubectl(t, "delete", "pod", "echo", "--now") })
	s.Kubectl(t, "wait", "--for=condition=Ready", "pod/echo", "--timeout=120s")
	_, reset := s.service(t, "idle", "", "selector: {app: echo}, ports: [{port: 7}]")
	_, silent := s.service(t, "silent", `annotations: {service.beta.kubernetes.io/azure-load-balancer-disable-tcp-reset: "true"}`,
		"selector: {app: echo}, ports: [{port: 7}]")
	vips := []string{silent, reset} // in this order their flows end
	_, out, _ := s.Talk(t, "client", `exec {a}<>/dev/tcp/$1/7 {b}<>/dev/tcp/$2/7
for fd in $a $b; do echo hello >&$fd && read -r line <&$fd; done
echo open; read -r end`, reset, silent)
	if line, err := out.ReadString('\n'); err != nil {
		t.Fatalf("connect: %q %v", line, err)
	}
	// The seconds that a flow has left, and the client's port.
	open := regexp.MustCompile(`(?m)^tcp +6 (\d+) ESTABLISHED src=198\.51\.100\.10 dst=\S+ sport=(\d+) `)
	flow := func(vip string) []string {
		return open.FindStringSubmatch(s.SSH(t, "fabric", "conntrack", "-L", "-p", "tcp", "-d", vip))
	}
	ports := map[string]string{}
	for _, vip := range vips {
		f := flow(vip)
		if f == nil {
			t.Fatalf("no flow to %s", vip)
		}
		if seconds, err := strconv.Atoi(f[1]); err != nil || seconds > 240 || seconds < 180 {
			t.Errorf("an idle flow to %s has %s s left, not those of 4 min", vip, f[1])
		}
		ports[vip] = f[2]
	}
	hosts := []string{"client"}
	for name := range s.nodes(t) {
		hosts = append(hosts, name)
	}
	vip, client := regexp.QuoteMeta(reset)+`\.7`, `198\.51\.100\.10\.`+ports[reset]
	toClient := `IP ` + vip + ` > ` + client + `: Flags \[R`
	// The fabric looks at least once a minute which flows are idle. So these are idle for a little longer, not for four minutes.
	seen := captureAll(t, s.World, hosts, "host 198.51.100.10 and tcp[tcpflags] & tcp-rst != 0", map[string]string{"client": toClient}, func() {
		for _, vip := range vips {
			s.SSH(t, "fabric", "conntrack", "-U", "-p", "tcp", "-s", "198.51.100.10", "-d", vip, "--timeout", "75")
		}
		eventually.Succeeds(t, 3*time.Minute, func() error {
			if flow(reset) != nil || flow(silent) != nil {
				return errors.New("the flows are not over yet")
			}
			return nil
		})
	})
	all := ""
	for _, lines := range seen {
		all += lines
	}
	expect(t, strings.ReplaceAll(all, seen["client"], ""), `IP `+client+` > `+vip+`: Flags \[R`)
	if strings.Contains(all, silent) {
		t.Errorf("resets where they are switched off:\n%s", all)
	}
}
