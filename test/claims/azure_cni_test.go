package claims

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

func TestMain(m *testing.M) { os.Exit(world.Main(m)) }

const (
	part1Node = "aks-nodepool1-31351229-0"
	client    = "198.51.100.10"
	nodeIP    = "10.13.76.4"
)

// part1 is the world of the Part 1 article with one of its manifests rolled out, and answering on the internet.
type part1 struct {
	*world.World
	service  corev1.Service
	vip      string
	nodePort string
	pods     []corev1.Pod
}

func part1World(t *testing.T, manifest string) *part1 {
	t.Helper()
	p := &part1{World: world.Up(t, "azure-cni", manifest)}
	p.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	eventually.Succeeds(t, 30*time.Second, func() error {
		p.Get(t, &p.service, "service", "whereami")
		return p.probeIsFor(t, p.service)
	})
	p.service = p.WaitService(t, "default", "whereami")
	p.vip = p.service.Status.LoadBalancer.Ingress[0].IP
	p.pods, p.nodePort = p.Pods(t, "-l", "app=whereami"), fmt.Sprint(p.service.Spec.Ports[0].NodePort)
	return p
}

// probeIsFor checks that the load balancer has the probe of the service's present traffic policy.
func (p *part1) probeIsFor(t *testing.T, s corev1.Service) error {
	port := s.Spec.Ports[0].NodePort
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		port = s.Spec.HealthCheckNodePort
	}
	for _, probe := range p.probes(t) {
		if probe["port"] == float64(port) {
			return nil
		}
	}
	return fmt.Errorf("no probe of port %d", port)
}

// ask sends one request from the internet's client to the front end.
func (p *part1) ask() (string, error) {
	return p.Try(10*time.Second, "ssh", "--name", p.Name, "client", "--", "curl", "-sS", "--max-time", "3", "http://"+p.vip)
}

func (p *part1) rules(t *testing.T) []map[string]any {
	t.Helper()
	return p.azJSON(t, "network", "lb", "rule", "list", "-g", "MC_akstest_aksPacketWalkAzure_westeurope", "--lb-name", "kubernetes")
}

func (p *part1) probes(t *testing.T) []map[string]any {
	t.Helper()
	return p.azJSON(t, "network", "lb", "probe", "list", "-g", "MC_akstest_aksPacketWalkAzure_westeurope", "--lb-name", "kubernetes")
}

func (p *part1) azJSON(t *testing.T, args ...string) []map[string]any {
	t.Helper()
	var list []map[string]any
	if err := json.Unmarshal([]byte(p.Az(t, append(args, "-o", "json")...)), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// localProbeName returns the name of the probe of a Service with traffic policy Local: one for all its ports.
func localProbeName(s corev1.Service) string {
	return strings.TrimSuffix(ruleName(s), "80") + fmt.Sprint(s.Spec.HealthCheckNodePort)
}

// ruleName returns the name that Azure's cloud provider gives to the rule and the probe of a service's port.
func ruleName(s corev1.Service) string {
	name := "a" + strings.ReplaceAll(string(s.UID), "-", "")
	return name[:32] + "-TCP-80"
}

func expectFields(t *testing.T, got map[string]any, want map[string]any) {
	t.Helper()
	for field, value := range want {
		if fmt.Sprint(got[field]) != fmt.Sprint(value) {
			t.Errorf("%s is %v, want %v", field, got[field], value)
		}
	}
}

func only(t *testing.T, list []map[string]any, name string) map[string]any {
	t.Helper()
	for _, item := range list {
		if item["name"] == name {
			return item
		}
	}
	t.Fatalf("no %s in %v", name, list)
	return nil
}

// matches checks that text has a match of each pattern.
func matches(text string, patterns ...string) error {
	for _, p := range patterns {
		if !regexp.MustCompile(`(?m)` + p).MatchString(text) {
			return fmt.Errorf("nothing matches %q in:\n%s", p, text)
		}
	}
	return nil
}

// expect checks that text has a match of each pattern.
func expect(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if err := matches(text, p); err != nil {
			t.Error(err)
		}
	}
}

func TestA1(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami.yaml")
	expect(t, p.Kubectl(t, "get", "svc"),
		`^NAME +TYPE +CLUSTER-IP +EXTERNAL-IP +PORT\(S\) +AGE$`,
		`^whereami +LoadBalancer +10\.0\.\d+\.\d+ +203\.0\.113\.\d+ +80:`+p.nodePort+`/TCP `)
	var ips []string
	first, last := netip.MustParseAddr("10.13.76.5"), netip.MustParseAddr("10.13.76.34")
	for _, pod := range p.pods {
		ip := netip.MustParseAddr(pod.Status.PodIP)
		if ip.Less(first) || last.Less(ip) {
			t.Errorf("pod %s has %s, want an address from %s to %s", pod.Name, ip, first, last)
		}
		expect(t, p.Kubectl(t, "get", "pod", "-o", "wide"), `^`+pod.Name+` +1/1 +Running +0 .*`+regexp.QuoteMeta(ip.String())+` +`+part1Node)
		ips = append(ips, ip.String()+":80")
	}
	if len(ips) != 2 {
		t.Fatalf("%d pods, want 2", len(ips))
	}
	slices.Sort(ips)
	endpoints := strings.Fields(p.Kubectl(t, "get", "ep", "whereami", "--no-headers"))
	got := strings.Split(endpoints[1], ",")
	slices.Sort(got)
	if !slices.Equal(got, ips) {
		t.Errorf("endpoints %v, want %v", got, ips)
	}
	expect(t, p.Kubectl(t, "get", "nodes", "-o", "wide"), `^`+part1Node+` +Ready .*`+regexp.QuoteMeta(nodeIP))
}

func TestA2(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami.yaml")
	expectFields(t, only(t, p.rules(t), ruleName(p.service)), map[string]any{
		"frontendPort": 80, "backendPort": 80, "enableFloatingIp": true, "enableTcpReset": false,
		"idleTimeoutInMinutes": 4, "loadDistribution": "Default", "protocol": "Tcp",
	})
	expect(t, p.Az(t, "network", "lb", "rule", "list", "-g", "MC_akstest_aksPacketWalkAzure_westeurope", "--lb-name", "kubernetes", "-o",
		"table"),
		`^BackendPort +EnableFloatingIp +EnableTcpReset +FrontendPort +IdleTimeoutInMinutes +LoadDistribution +Name +Protocol +ProvisioningState +ResourceGroup$`,
		`^80 +True +False +80 +4 +Default +`+ruleName(p.service)+` +Tcp +Succeeded +MC_akstest_aksPacketWalkAzure_westeurope$`)
}

func TestA3(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami.yaml")
	expectFields(t, only(t, p.probes(t), ruleName(p.service)), map[string]any{
		"protocol": "Tcp", "port": p.nodePort, "intervalInSeconds": 5, "numberOfProbes": 2,
	})
	seen := p.CaptureUntil(t, part1Node, "eth0", "src host 168.63.129.16 and tcp dst port "+p.nodePort, func() {}, `(?s)(Flags \[S\].*){3}`)
	if shortest, longest := probePauses(t, seen); shortest > 7500*time.Millisecond || longest < 2500*time.Millisecond {
		t.Errorf("probes come after %v to %v, want one every 5 s:\n%s", shortest, longest, seen)
	}

	// Two probes that are not answered in 5 s take the node out.
	block := func(op string) {
		p.SSH(t, part1Node, "iptables", "-t", "raw", op, "PREROUTING", "-s", "168.63.129.16", "-p", "tcp", "--dport", p.nodePort, "-j", "DROP")
	}
	defer func() {
		block("-D")
		eventually.Succeeds(t, 30*time.Second, func() error { return p.healthyIs(t, part1Node) })
	}()
	tries := map[string]int{} // of a probe, by its port: one a second
	began := time.Now()
	seen = p.Capture(t, part1Node, "eth0", "src host 168.63.129.16 and tcp dst port "+p.nodePort, func() {
		block("-I")
		eventually.Succeeds(t, time.Minute, func() error { return p.healthyIs(t) })
	})
	down := p.wentDown(t, began).Local().Format("15:04:05.000000")
	for _, m := range probeSYN.FindAllStringSubmatch(seen, -1) {
		if m[1] < down {
			tries[m[2]]++
		}
	}
	failed := 0 // the next one begins when the second has failed
	for _, n := range tries {
		if n >= 4 {
			failed++
		}
	}
	if failed != 2 {
		t.Errorf("the node went out after %d probes that failed, want 2:\n%s", failed, seen)
	}
	if out, err := p.ask(); err == nil {
		t.Errorf("without a back end a new connection is answered: %s", out)
	}
}

// probeSYN matches a line of tcpdump of a probe's first packet, or of one that repeats it: the time and the probe's port.
var probeSYN = regexp.MustCompile(`(?m)^(\S+) .*168\.63\.129\.16\.(\d+) > .*Flags \[S\]`)

// probePauses returns the shortest and the longest time from one probe to the next.
func probePauses(t *testing.T, seen string) (shortest, longest time.Duration) {
	t.Helper()
	var last time.Time
	ports := map[string]bool{}
	shortest = 24 * time.Hour
	for _, m := range probeSYN.FindAllStringSubmatch(seen, -1) {
		at, err := time.Parse("15:04:05.000000", m[1])
		if err != nil {
			t.Fatal(err)
		}
		if ports[m[2]] {
			continue
		}
		if ports[m[2]] = true; len(ports) > 1 {
			pause := (at.Sub(last) + 24*time.Hour) % (24 * time.Hour) // also past midnight
			shortest, longest = min(shortest, pause), max(longest, pause)
		}
		last = at
	}
	return shortest, longest
}

// wentDown returns when the lab noted that a back end is down, which it notes after it has told the kernel.
func (p *part1) wentDown(t *testing.T, since time.Time) (at time.Time) {
	t.Helper()
	noted := regexp.MustCompile(`(?m)^time=(\S+) .*msg="back end changed".* up=false`)
	eventually.Succeeds(t, 30*time.Second, func() error {
		log, err := os.ReadFile(filepath.Join("/var/lib/packetwalk", p.Name, "disk/.logs/lab.log"))
		if err != nil {
			return err
		}
		found := noted.FindAllSubmatch(log, -1)
		if len(found) > 0 {
			at, err = time.Parse(time.RFC3339Nano, string(found[len(found)-1][1]))
		}
		if err == nil && at.Before(since) {
			err = errors.New("the lab noted no back end that is down")
		}
		return err
	})
	return at
}

// healthyIs checks which back ends of the service's front end are healthy.
func (p *part1) healthyIs(t *testing.T, want ...string) error {
	t.Helper()
	var st struct {
		Frontends []struct {
			Rule    string
			Healthy []string
		}
	}
	out, _ := p.Try(time.Minute, "status", "--name", p.Name, "-o", "json") // a front end without back ends is a problem: exit status 1
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return err
	}
	for _, f := range st.Frontends {
		if f.Rule == ruleName(p.service) && slices.Equal(f.Healthy, want) {
			return nil
		}
	}
	return fmt.Errorf("want healthy back ends %v: %+v", want, st.Frontends)
}

func TestA4(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami.yaml")
	ids := strings.Fields(p.Az(t, "network", "lb", "address-pool", "list", "-g", "MC_akstest_aksPacketWalkAzure_westeurope", "--lb-name",
		"kubernetes",
		"--query", "[].backendIpConfigurations[].id", "-o", "tsv"))
	if len(ids) != 1 || !strings.HasSuffix(ids[0],
		"/providers/Microsoft.Network/networkInterfaces/aks-nodepool1-31351229-nic-0/ipConfigurations/ipconfig1") {
		t.Errorf("back-end pool is %v, want the node's primary IP configuration alone", ids)
	}
	ip := strings.TrimSpace(p.Az(t, "network", "nic", "ip-config", "show", "-g", "MC_akstest_aksPacketWalkAzure_westeurope",
		"--nic-name", "aks-nodepool1-31351229-nic-0", "-n", "ipconfig1", "--query", "privateIpAddress", "-o", "tsv"))
	if ip != nodeIP {
		t.Errorf("its address is %s, want %s", ip, nodeIP)
	}
}

// flows asks n times and gives the node's conntrack entries towards the front end that are the client's.
func (p *part1) flows(t *testing.T, n int) string {
	t.Helper()
	for range n {
		if _, err := p.ask(); err != nil {
			t.Fatal(err)
		}
	}
	return p.SSH(t, part1Node, "conntrack", "-L", "-d", p.vip)
}

func TestA7(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami.yaml")
	flows := p.flows(t, 24)
	for _, pod := range p.pods {
		expect(t, flows, `src=`+client+` dst=`+p.vip+` sport=(\d+) dport=80 src=`+pod.Status.PodIP+` dst=`+nodeIP+` sport=80 dport=\d+ `)
	}
}

// podLink finds the pod's eth0 and the node's end of it.
func (p *part1) podLink(t *testing.T, pod corev1.Pod) (mac, veth string) {
	t.Helper()
	inside := p.SSH(t, "pod/default/"+pod.Name, "ip", "addr", "show", "eth0")
	m := regexp.MustCompile(`eth0@if(\d+): `).FindStringSubmatch(inside)
	if m == nil {
		t.Fatalf("no eth0@if in\n%s", inside)
	}
	expect(t, inside, `inet `+regexp.QuoteMeta(pod.Status.PodIP)+`/24 .*scope global eth0`)
	mac = regexp.MustCompile(`link/ether (\S+)`).FindStringSubmatch(inside)[1]
	outside := p.SSH(t, part1Node, "ip", "addr")
	v := regexp.MustCompile(`(?m)^` + m[1] + `: (azv[0-9a-f]{11})@if\d+: .* master azure0 `).FindStringSubmatch(outside)
	if v == nil {
		t.Fatalf("interface %s of the node is no azv veth on azure0:\n%s", m[1], outside)
	}
	return mac, v[1]
}

func TestA8(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami.yaml")
	for _, pod := range p.pods {
		p.podLink(t, pod)
	}
}

func TestA9(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami.yaml")
	ports := p.SSH(t, part1Node, "bridge", "link")
	expect(t, ports, `eth0(@\S+)?: .* master azure0 `)
	expect(t, p.SSH(t, part1Node, "brctl", "show"), `^azure0\s+8000\.[0-9a-f]{12}\s+no\s`)
	for _, pod := range p.pods {
		mac, veth := p.podLink(t, pod)
		expect(t, ports, veth+`@\S+: .* master azure0 `)
		if _, err := p.ask(); err != nil {
			t.Fatal(err)
		}
		// The bridge learns the pod's address when the pod sends.
		p.SSH(t, part1Node, "ping", "-c", "1", "-W", "2", pod.Status.PodIP)
		expect(t, p.SSH(t, part1Node, "bridge", "fdb", "show", "br", "azure0"), `^`+mac+` dev `+veth+` `)
		expect(t, p.SSH(t, part1Node, "arp", "-a", pod.Status.PodIP), regexp.QuoteMeta(pod.Status.PodIP)+`\) at `+mac+` \[ether\] PERM on azure0`)
	}
	bridge, nic := p.SSH(t, part1Node, "ip", "addr", "show", "azure0"), p.SSH(t, part1Node, "ip", "addr", "show", "eth0")
	expect(t, bridge, `inet `+regexp.QuoteMeta(nodeIP)+`/24 `)
	if strings.Contains(nic, "inet ") {
		t.Errorf("eth0 still has an address:\n%s", nic)
	}
	ether := regexp.MustCompile(`link/ether (\S+)`)
	if a, b := ether.FindStringSubmatch(bridge), ether.FindStringSubmatch(nic); a == nil || b == nil || a[1] != b[1] {
		t.Errorf("azure0 and eth0 have different MACs:\n%s%s", bridge, nic)
	}
}

func TestA10(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami.yaml")
	vip, host := regexp.QuoteMeta(p.vip), regexp.QuoteMeta(client)
	// A probe comes every 5 s, and the node's agent asks for its goal state every 6 s.
	seen := p.CaptureUntil(t, part1Node, "eth0", "port 80 or port "+p.nodePort, func() {
		if _, err := p.ask(); err != nil {
			t.Error(err)
		}
	},
		` IP `+host+`\.\d+ > `+vip+`\.80: Flags \[S\]`,
		` IP `+vip+`\.80 > `+host+`\.\d+: Flags \[S\.\]`,
		` IP 168\.63\.129\.16\.\d+ > 10\.13\.76\.4\.`+p.nodePort+`: Flags \[S\]`,
		// What the platform does by itself.
		` IP 10\.13\.76\.4\.\d+ > 168\.63\.129\.16\.80: Flags \[S\]`,
		` IP 168\.63\.129\.16\.80 > 10\.13\.76\.4\.\d+: Flags \[S\.\]`,
		` IP 10\.13\.76\.4\.\d+ > 168\.63\.129\.16\.80: Flags \[P\.\], .*HTTP: GET /machine/\?comp=goalstate HTTP/1\.1`)
	if regexp.MustCompile(host + `\.\d+ > 10\.13\.76\.`).MatchString(seen) {
		t.Errorf("a client's packet came with a translated destination:\n%s", seen)
	}
}

func TestA11(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami-local.yaml")
	pod := p.pods[1]
	_, veth := p.podLink(t, pod)
	var flows string
	seen := p.Capture(t, part1Node, veth, "port 80", func() { flows = p.flows(t, 24) })
	for _, pod := range p.pods {
		expect(t, flows, `src=`+client+` dst=`+p.vip+` sport=(\d+) dport=80 src=`+pod.Status.PodIP+` dst=`+client+` sport=80 dport=\d+ `)
	}
	expect(t, seen, ` IP `+regexp.QuoteMeta(client)+`\.\d+ > `+regexp.QuoteMeta(pod.Status.PodIP)+`\.80: Flags \[S\]`)
}

// healthz asks the health check node port on the node.
func (p *part1) healthz(t *testing.T, s corev1.Service) string {
	t.Helper()
	return p.SSH(t, part1Node, "curl", "-sS", "--max-time", "3", "-w", "\n%{http_code}",
		fmt.Sprintf("http://localhost:%d/healthz", s.Spec.HealthCheckNodePort))
}

func TestA13(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami-local.yaml")
	port := p.service.Spec.HealthCheckNodePort
	expectFields(t, only(t, p.probes(t), localProbeName(p.service)), map[string]any{
		"protocol": "Http", "port": port, "requestPath": "/healthz", "intervalInSeconds": 5, "numberOfProbes": 2,
	})
	eventually.Succeeds(t, 30*time.Second, func() error { // the node answers anew after it has written the rules
		return matches(p.healthz(t, p.service), `"namespace": "default"`, `"name": "whereami"`, `"localEndpoints": 2`, `^200$`)
	})
	expect(t, p.SSH(t, part1Node, "netstat", "-lntp"), fmt.Sprintf(`:%d .* LISTEN +\d+/packetwalk-no`, port)) // netstat cuts names

	// Without endpoints the node answers 503 and the load balancer sends it nothing.
	p.Kubectl(t, "scale", "deployment/whereami", "--replicas=0")
	defer p.Kubectl(t, "scale", "deployment/whereami", "--replicas=2")
	eventually.Succeeds(t, 30*time.Second, func() error {
		if text := p.healthz(t, p.service); !strings.HasSuffix(text, "\n503") || !strings.Contains(text, `"localEndpoints": 0`) {
			return errors.New(text)
		}
		return nil
	})
	eventually.Succeeds(t, time.Minute, func() error { return p.healthyIs(t) })
	seen := p.Capture(t, part1Node, "eth0", "dst host "+p.vip, func() {
		if out, err := p.ask(); err == nil {
			t.Errorf("answered without a pod: %s", out)
		}
	})
	if strings.Contains(seen, "Flags [S]") {
		t.Errorf("the node got traffic while its probe failed:\n%s", seen)
	}
	p.oneOfTwoNodes(t)
}

// oneOfTwoNodes: of two nodes, the one without endpoints gets none of many requests, and none of them fails.
func (p *part1) oneOfTwoNodes(t *testing.T) {
	t.Helper()
	const second, requests = "aks-nodepool1-31351229-1", 400
	p.Az(t, "aks", "scale", "-g", "akstest", "-n", "aksPacketWalkAzure", "-c", "2")
	defer p.Az(t, "aks", "scale", "-g", "akstest", "-n", "aksPacketWalkAzure", "-c", "1")
	p.Kubectl(t, "cordon", second)
	p.Kubectl(t, "scale", "deployment/whereami", "--replicas=1")
	p.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	if pods := p.Pods(t, "-l", "app=whereami"); len(pods) != 1 || pods[0].Spec.NodeName != part1Node {
		t.Fatalf("the pods are %v, want one on %s", pods, part1Node)
	}
	p.WaitService(t, "default", "whereami")
	eventually.Succeeds(t, 30*time.Second, func() error {
		if code := p.SSH(t, second, "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}",
			fmt.Sprintf("http://localhost:%d/healthz", p.service.Spec.HealthCheckNodePort)); code != "503" {
			return fmt.Errorf("health check of %s: %s, want 503", second, code)
		}
		return p.healthyIs(t, part1Node)
	})
	var answers string
	seen := p.Capture(t, second, "eth0", "dst host "+p.vip, func() {
		// Eight at a time, each with a port of its own.
		answers = p.SSH(t, "client", "bash", "-c", fmt.Sprintf(
			`seq %d | xargs -P 8 -I{} curl -sS -o /dev/null --max-time 5 -w '%%{http_code}\n' http://%s 2>&1`, requests, p.vip))
	})
	if n := strings.Count(answers, "200\n"); n != requests {
		t.Errorf("%d of %d requests were answered:\n%s", n, requests, strings.ReplaceAll(answers, "200\n", ""))
	}
	if n := strings.Count(seen, "Flags [S]"); n != 0 {
		t.Errorf("%d requests came to %s, which has no endpoint", n, second)
	}
}

func TestA14(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami-local.yaml")
	p.Kubectl(t, "apply", "-f", p.Example("azure-cni", "nginx-elb.yaml"))
	p.Kubectl(t, "rollout", "status", "deployment/nginx", "--timeout=120s")
	var nginx corev1.Service
	eventually.Succeeds(t, 30*time.Second, func() error {
		p.Get(t, &nginx, "service", "nginx")
		return p.probeIsFor(t, nginx)
	})
	if nginx.Spec.HealthCheckNodePort == p.service.Spec.HealthCheckNodePort {
		t.Errorf("both services have health check node port %d", nginx.Spec.HealthCheckNodePort)
	}
	expectFields(t, only(t, p.probes(t), localProbeName(nginx)),
		map[string]any{"protocol": "Http", "port": nginx.Spec.HealthCheckNodePort, "requestPath": "/healthz"})
	eventually.Succeeds(t, 30*time.Second, func() error { return matches(p.healthz(t, nginx), `"name": "nginx"`, `^200$`) })
	expect(t, p.healthz(t, p.service), `"name": "whereami"`, `^200$`)
}
