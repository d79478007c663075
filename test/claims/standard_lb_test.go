package claims

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/test/world"
)

// standard is a cluster with a Standard load balancer, which Azure's own provider works on, and the pods of Service whereami.
type standard struct {
	*outbound
	group string // the nodes' resource group
}

func standardWorld(t *testing.T) standard {
	t.Helper()
	s := standard{outbound: &outbound{World: world.UpFile(t, "outbound", "standard.yaml", "whereami.yaml", "ubuntu.yaml")}}
	s.Kubectl(t, "wait", "--for=condition=Ready", "pod/ubuntu", "--timeout=120s")
	s.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	s.vip = s.inForce(t, "whereami")
	s.group = strings.TrimSpace(s.Az(t, "network", "lb", "list", "--query", "[0].resourceGroup", "-o", "tsv"))
	return s
}

// service applies a Service of type LoadBalancer of the pods of whereami, until the test ends, and returns it and its front end's address
// when it is in force.
// metadata and spec are more of its fields, as YAML.
func (s standard) service(t *testing.T, name, metadata, spec string) (corev1.Service, string) {
	t.Helper()
	s.apply(t, name, metadata, spec)
	t.Cleanup(func() { s.Kubectl(t, "delete", "service", name, "--timeout=120s") })
	service := s.WaitService(t, "default", name)
	return service, service.Status.LoadBalancer.Ingress[0].IP
}

func (s standard) apply(t *testing.T, name, metadata, spec string) {
	t.Helper()
	if !strings.Contains(spec, "selector:") {
		spec = "selector: {app: whereami}, " + spec
	}
	text := fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s, %s}, spec: {type: LoadBalancer, %s}}", name, metadata, spec)
	if _, err := s.TryInput(time.Minute, text, "kubectl", "--name", s.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// baseName returns the name of a Service in Azure: "a" and its UID, cut to 32 characters.
func baseName(s corev1.Service) string {
	return ("a" + strings.ReplaceAll(string(s.UID), "-", ""))[:32]
}

// fields are a resource as az shows it. Its references are by id.
type fields map[string]any

// ref returns the name of what a field refers to, "" where it refers to nothing.
func (f fields) ref(name string) string {
	o, _ := f[name].(map[string]any)
	id, _ := o["id"].(string)
	return id[strings.LastIndex(id, "/")+1:]
}

// of lists the parts of a load balancer, by name, as far as their names start with a prefix.
func (s standard) of(t *testing.T, lb, kind, prefix string) map[string]fields {
	t.Helper()
	var list []fields
	if err := json.Unmarshal([]byte(s.Az(t, "network", "lb", kind, "list", "-g", s.group, "--lb-name", lb)), &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]fields{}
	for _, f := range list {
		if name := f["name"].(string); strings.HasPrefix(name, prefix) {
			all[name] = f
		}
	}
	return all
}

// same compares some of the fields of a resource.
func same(t *testing.T, what string, got fields, want fields) {
	t.Helper()
	for k, w := range want {
		if g := got[k]; g != w {
			t.Errorf("%s has %s %v, not %v", what, k, g, w)
		}
	}
}

func TestG1(t *testing.T) {
	s := standardWorld(t)
	var service corev1.Service
	s.Get(t, &service, "service", "whereami")
	base := baseName(service)
	rules := s.of(t, "kubernetes", "rule", base)
	rule := rules[base+"-TCP-80"]
	if len(rules) != 1 {
		t.Fatalf("the Service's rules are %v", rules)
	}
	same(t, "the rule", rule, fields{"protocol": "Tcp", "frontendPort": 80.0, "backendPort": 80.0, "enableFloatingIp": true,
		"enableTcpReset": true, "idleTimeoutInMinutes": 4.0, "disableOutboundSnat": true, "loadDistribution": "Default"})
	if pool, frontend := rule.ref("backendAddressPool"), rule.ref("frontendIpConfiguration"); pool != "kubernetes" || frontend != base {
		t.Errorf("the rule leads from %q to pool %q", frontend, pool)
	}
	expect(t, s.Az(t, "network", "public-ip", "list", "-g", s.group, "--query", "[].[name, ipAddress, sku.name]", "-o", "tsv"),
		`(?m)^kubernetes-`+base+`\t`+s.vip+`\tStandard$`)
	out, err := who(s.World, "http://"+s.vip)
	if err != nil || out.Host != s.vip {
		t.Errorf("the front end answers %+v, %v", out, err)
	}
}

func TestG2(t *testing.T) {
	s := standardWorld(t)
	rule := s.of(t, "kubernetes", "outbound-rule", "")["aksOutboundRule"]
	same(t, "the outbound rule", rule, fields{"protocol": "All", "idleTimeoutInMinutes": 30.0, "enableTcpReset": true})
	if pool := rule.ref("backendAddressPool"); pool != "aksOutboundBackendPool" {
		t.Errorf("the outbound rule is pool %q's", pool)
	}
	_, second := s.service(t, "second", "", "ports: [{port: 80}]")
	seen, err := s.calls(ifconfig)
	if err != nil || seen == s.vip || seen == second || !strings.HasPrefix(seen, "203.0.113.") {
		t.Errorf("an internet host sees %s (%v); the Services' addresses are %s and %s", seen, err, s.vip, second)
	}
}

func TestG3(t *testing.T) {
	s := standardWorld(t)
	service, _ := s.service(t, "local", "", "externalTrafficPolicy: Local, ports: [{name: a, port: 80}, {name: b, port: 81, targetPort: 80}, "+
		"{name: u, port: 53, protocol: UDP}]")
	base := baseName(service)
	name := fmt.Sprintf("%s-TCP-%d", base, service.Spec.HealthCheckNodePort)
	probes := s.of(t, "kubernetes", "probe", base)
	if len(probes) != 1 || probes[name] == nil {
		t.Fatalf("the probes are %v, not %s alone", probes, name)
	}
	same(t, "the probe", probes[name], fields{"protocol": "Http", "port": float64(service.Spec.HealthCheckNodePort), "requestPath": "/healthz",
		"intervalInSeconds": 5.0, "probeThreshold": 2.0})
	for _, rule := range []string{"-TCP-80", "-TCP-81", "-UDP-53"} {
		if r := s.of(t, "kubernetes", "rule", base)[base+rule]; r.ref("probe") != name {
			t.Errorf("rule %s has probe %q", rule, r.ref("probe"))
		}
	}
}

func TestG4(t *testing.T) {
	s := standardWorld(t)
	service, _ := s.service(t, "both", "", "ports: [{name: a, port: 80}, {name: u, port: 53, protocol: UDP}]")
	base := baseName(service)
	probes := s.of(t, "kubernetes", "probe", base)
	if len(probes) != 1 {
		t.Fatalf("the probes are %v", probes)
	}
	same(t, "the probe", probes[base+"-TCP-80"], fields{"protocol": "Tcp", "port": float64(service.Spec.Ports[0].NodePort)})
	rules := s.of(t, "kubernetes", "rule", base)
	if tcp, udp := rules[base+"-TCP-80"].ref("probe"), rules[base+"-UDP-53"].ref("probe"); tcp != base+"-TCP-80" || udp != "" {
		t.Errorf("the rules have probes %q (TCP) and %q (UDP)", tcp, udp)
	}
}

func TestG5(t *testing.T) {
	s := standardWorld(t)
	const path = "service.beta.kubernetes.io/port_80_health-probe_request-path"
	s.Kubectl(t, "create", "deployment", "web", "--image=nginx")
	t.Cleanup(func() { s.Kubectl(t, "delete", "deployment", "web") })
	s.Kubectl(t, "rollout", "status", "deployment/web", "--timeout=120s")
	service, vip := s.service(t, "web", "", "selector: {app: web}, ports: [{port: 80, appProtocol: http}]")
	base := baseName(service)
	same(t, "the probe", s.of(t, "kubernetes", "probe", base)[base+"-TCP-80"], fields{"protocol": "Http", "requestPath": "/",
		"port": float64(service.Spec.Ports[0].NodePort)})
	answers := func(want bool) {
		t.Helper()
		eventually.Succeeds(t, time.Minute, func() error {
			if _, err := asks(s.World, "client", "-f", "http://"+vip); (err == nil) != want {
				return fmt.Errorf("answers: %t, want %t: %w", err == nil, want, err)
			}
			return nil
		})
	}
	answers(true)
	s.Kubectl(t, "annotate", "service", "web", path+"=/missing") // where nginx answers 404
	answers(false)
	s.Kubectl(t, "annotate", "--overwrite", "service", "web", path+"=/index.html")
	answers(true)
}

func TestG7(t *testing.T) {
	s := standardWorld(t)
	service, vip := s.service(t, "inner", "annotations: {"+internalLB+"}", "ports: [{port: 80}]")
	if !strings.HasPrefix(vip, "10.13.76.") {
		t.Errorf("the front end is %s, not of the nodes' subnet", vip)
	}
	base := baseName(service)
	if r := s.of(t, "kubernetes-internal", "rule", base)[base+"-TCP-80"]; r.ref("frontendIpConfiguration") != base {
		t.Errorf("the rule is %v", r)
	}
	expect(t, s.SSH(t, "testvm", "curl", "-sS", "--max-time", "3", "http://"+vip), `"my_private_ip": "10\.13\.76\.`)
	service, vip = s.service(t, "subnet", "annotations: {"+internalLB+", service.beta.kubernetes.io/azure-load-balancer-internal-subnet: vmsubnet}",
		"ports: [{port: 80}]")
	if !strings.HasPrefix(vip, "10.13.1.") {
		t.Errorf("the front end is %s, not of the annotation's subnet", vip)
	}
	base = baseName(service) + "-vmsubnet"
	if r := s.of(t, "kubernetes-internal", "rule", base)[base+"-TCP-80"]; r.ref("frontendIpConfiguration") != base || r.ref("probe") != base+"-TCP-80" {
		t.Errorf("the rules are %v", s.of(t, "kubernetes-internal", "rule", ""))
	}
}

func TestG11(t *testing.T) {
	s := standardWorld(t)
	service, vip := s.service(t, "plain", `annotations: {service.beta.kubernetes.io/azure-disable-load-balancer-floating-ip: "true"}`,
		"ports: [{port: 80}]")
	base, port := baseName(service), service.Spec.Ports[0].NodePort
	same(t, "the rule", s.of(t, "kubernetes", "rule", base)[base+"-TCP-80"], fields{"enableFloatingIp": false, "frontendPort": 80.0,
		"backendPort": float64(port)})
	var nodes corev1.NodeList
	s.Get(t, &nodes, "nodes")
	var seen strings.Builder
	for _, n := range nodes.Items {
		seen.WriteString(s.Capture(t, n.Name, "eth0", fmt.Sprintf("src host 198.51.100.10 and tcp dst port %d", port), func() {
			for range 8 { // some of them come to this node
				if _, err := asks(s.World, "client", "-f", "http://"+vip); err != nil {
					t.Error(err)
				}
			}
		}))
	}
	expect(t, seen.String(), fmt.Sprintf(`IP 198\.51\.100\.10\.\d+ > 10\.13\.76\.\d+\.%d: Flags \[S\]`, port))
}

func TestG12(t *testing.T) {
	s := standardWorld(t)
	_, vip := s.service(t, "ranges", "", "loadBalancerSourceRanges: [198.51.100.0/28], ports: [{port: 80}]")
	nsg := strings.TrimSpace(s.Az(t, "network", "nsg", "list", "-g", s.group, "--query", "[0].name", "-o", "tsv"))
	var rules []fields
	if err := json.Unmarshal([]byte(s.Az(t, "network", "nsg", "rule", "list", "-g", s.group, "--nsg-name", nsg)), &rules); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(rules, func(f fields) bool { return f["destinationAddressPrefix"] == vip })
	if i < 0 {
		t.Fatalf("no rule for %s: %v", vip, rules)
	}
	expect(t, rules[i]["name"].(string), `^k8s-azure-lb_allow_IPv4_[0-9a-f]{32}$`)
	same(t, "the rule", rules[i], fields{"access": "Allow", "direction": "Inbound", "protocol": "Tcp", "sourceAddressPrefix": "198.51.100.0/28",
		"destinationPortRange": "80"})
	if p := rules[i]["priority"].(float64); p < 500 || p > 510 {
		t.Errorf("the rule has priority %v", p)
	}
	if out, err := asks(s.World, "client", "-f", "http://"+vip); err != nil {
		t.Errorf("a client in the ranges gets %q, %v", out, err)
	}
	if out, err := asks(s.World, "stranger", "-f", "http://"+vip); err == nil || !strings.Contains(err.Error(), "timed out") {
		t.Errorf("a client outside the ranges gets %q, %v", out, err)
	}
	if out, err := s.calls(vip); err == nil || !strings.Contains(err.Error(), "timed out") {
		t.Errorf("a pod outside the ranges gets %q, %v", out, err)
	}
}
