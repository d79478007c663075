package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/serviceproxy"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/internal/testing/kerneltest"
)

// The tests here run real agents in a network namespace of their own, with clients and endpoints in others. The test's own program plays
// all parts: which one, PACKETWALK_TEST_ROLE says.
func TestMain(m *testing.M) {
	switch role := os.Getenv("PACKETWALK_TEST_ROLE"); role {
	case "":
		flag.Parse()
		if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
			_ = flag.Set("test.parallel", "6") // they wait most of the time
		}
		os.Exit(m.Run())
	case "agent":
		os.Exit(playAgent(os.Args[1]))
	case "cleanup":
		if err := serviceproxy.Cleanup(context.Background(), (&fileSource{path: os.Args[1]}).read().Options); err != nil {
			log.Fatal(err)
		}
	case "remove":
		o := options.Defaults()
		o.IPTablesVariant = iptablescmd.VariantNFT
		if err := RemoveRules(context.Background(), o, log.Printf); err != nil {
			log.Fatal(err)
		}
	case "role":
		fmt.Println(conflict.Take("ip-masq-agent"))
		time.Sleep(time.Hour)
	case "kube-proxy":
		if err := playKubeProxy(os.Args[1]); err != nil {
			log.Fatal(err)
		}
	case "endpoint":
		playEndpoint(os.Args[1])
	case "client":
		patience := 4 * time.Second
		if len(os.Args) > 3 {
			patience = time.Second // the test expects no answer
		}
		playClient(os.Args[1], os.Args[2], patience)
	case "flows":
		playFlows(os.Args[1], os.Args[2])
	default:
		log.Fatalf("no role %q", role)
	}
}

// state is what the API holds, as a file.
type state struct {
	Options options.Options
	kube.Snapshot
	ConfigMaps []*corev1.ConfigMap
	Deleted    bool // the agent's DaemonSet
}

// fileSource gives the agent its objects from a file that the test rewrites.
type fileSource struct {
	path    string
	changed chan struct{}
}

func (s *fileSource) read() state {
	text, err := os.ReadFile(s.path)
	if err != nil {
		log.Fatal(err)
	}
	var st state
	if err := json.Unmarshal(text, &st); err != nil {
		log.Fatal(err)
	}
	return st
}

func (s *fileSource) Run(ctx context.Context) {
	last, _ := os.ReadFile(s.path)
	for ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
		if now, _ := os.ReadFile(s.path); !bytes.Equal(now, last) && json.Valid(now) {
			last = now
			select {
			case s.changed <- struct{}{}:
			default:
			}
		}
	}
}

// Deleted implements takeover.Owner.
func (s *fileSource) Deleted(context.Context) (bool, error) { return s.read().Deleted, nil }

func (s *fileSource) WaitForSync(context.Context) bool {
	return true
}

func (s *fileSource) Changed() <-chan struct{} { return s.changed }

func (s *fileSource) Delta(bool) kube.Delta { return s.read().Snapshot.Whole() }

func (s *fileSource) Event(_ context.Context, e corev1.Event) error {
	fmt.Fprintf(os.Stderr, "EVENT %s %s/%s\n", e.Reason, e.InvolvedObject.Namespace, e.InvolvedObject.Name)
	return nil
}

func (s *fileSource) SetPodCondition(_ context.Context, namespace, name string, c corev1.PodCondition) error {
	fmt.Fprintf(os.Stderr, "CONDITION of %s/%s: %s=%s\n", namespace, name, c.Type, c.Status)
	return nil
}

// world is a node with two local endpoints, an endpoint that counts as another node's, and a client beyond a router's worth of nothing.
type world struct {
	*testing.T
	family service.Family
	id     string
	path   string
	state  state
	node   string
}

// initials tell the worlds of backends apart, in a name that may not be long.
func initials(backends string) string {
	return strings.NewReplacer(options.BackendNFTables, "n", options.BackendIPTables, "i").Replace(backends)
}

// at returns an address, also with a port, or a range in the world's family. A range of IPv6 is 96 bits longer.
func (w *world) at(v4 string) string {
	if w.family == service.IPv4 {
		return v4
	}
	six := func(v4 netip.Addr) netip.Addr {
		b := netip.MustParseAddr("fd00::").As16()
		copy(b[12:], v4.AsSlice())
		return netip.AddrFrom16(b)
	}
	if p, err := netip.ParseAddrPort(v4); err == nil {
		return netip.AddrPortFrom(six(p.Addr()), p.Port()).String()
	}
	if p, err := netip.ParsePrefix(v4); err == nil {
		return netip.PrefixFrom(six(p.Addr()), 96+p.Bits()).String()
	}
	return six(netip.MustParseAddr(v4)).String()
}

// tool returns the name of a program of iptables, or nft's name of a family, for the world's family.
func (w *world) tool(v4 string) string {
	if w.family == service.IPv4 {
		return v4
	}
	return strings.Replace(v4, "ip", "ip6", 1)
}

const (
	clientIP = "198.51.100.10"
	nodeIPs  = "198.51.100.1" // the node's address towards the client
	vip      = "203.0.113.10"
	localVIP = "203.0.113.11"
)

func newWorld(t *testing.T, rules, backend string) *world {
	return newWorldOf(t, service.IPv4, rules, backend)
}

func newWorldOf(t *testing.T, family service.Family, rules, backend string) *world {
	kerneltest.NeedRoot(t)
	w := &world{T: t, family: family, id: fmt.Sprintf("pwag%d%s%d%s", os.Getpid(), initials(backend), family, strings.ReplaceAll(rules, ".", ""))}
	w.node = w.id + "-node"
	for _, name := range []string{"node", "client", "p1", "p2", "p3"} {
		w.sh("ip netns add %s-%s", w.id, name)
		t.Cleanup(func() { w.sh("ip netns del %s-%s", w.id, name) })
		w.sh("ip -n %s-%s link set lo up", w.id, name)
	}
	w.sh("ip netns exec %s sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1", w.node)
	w.sh("ip netns exec %s sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0", w.node) // errors come at once
	for i, name := range []string{"client", "p1", "p2", "p3"} {
		net := fmt.Sprintf("10.13.%d.", i)
		if name == "client" {
			net = "198.51.100."
		}
		last := map[bool]string{true: "10", false: "5"}[name == "client"]
		ns := w.id + "-" + name
		w.sh("ip -n %s link add v%d type veth peer name eth0 netns %s", w.node, i, ns)
		w.sh("ip -n %s addr add %s dev v%d %s", w.node, w.at(net+"1/24"), i, w.noDetection())
		w.sh("ip -n %s link set v%d up", w.node, i)
		w.sh("ip -n %s addr add %s dev eth0 %s", ns, w.at(net+last+"/24"), w.noDetection())
		w.sh("ip -n %s link set eth0 up", ns)
		w.sh("ip -n %s route add default via %s", ns, w.at(net+"1"))
	}
	w.sh("ip -n %s route add default via %s", w.node, w.at(clientIP))
	for _, name := range []string{"p1", "p2", "p3"} {
		w.start(name, "endpoint", name)
	}
	w.path = filepath.Join(t.TempDir(), "state.json")
	o := options.Defaults()
	o.NodeName, o.Rules, o.Backend, o.MinSyncPeriod = "node0", rules, backend, 10*time.Millisecond
	o.Families, o.ClusterCIDRs = []service.Family{family}, []netip.Prefix{netip.MustParsePrefix(w.at("10.13.0.0/16"))}
	if family == service.IPv4 {
		o.NodeMasquerade = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	}
	w.state.Options = o
	w.state.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0"}}
	w.save()
	return w
}

// noDetection has an address hold at once.
func (w *world) noDetection() string {
	if w.family == service.IPv4 {
		return ""
	}
	return "nodad"
}

func (w *world) sh(format string, args ...any) string {
	w.Helper()
	command := fmt.Sprintf(format, args...)
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	if err != nil {
		w.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// role starts the test's program in another part, in a namespace.
func (w *world) role(namespace, role string, args ...string) *exec.Cmd {
	cmd := exec.Command("ip", append([]string{"netns", "exec", w.id + "-" + namespace, os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), "PACKETWALK_TEST_ROLE="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (w *world) start(namespace, role string, args ...string) {
	w.Helper()
	cmd := w.role(namespace, role, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		w.Fatalf("%s %s: %q, %v", namespace, role, line, err)
	}
}

// save puts the state where the agent reads it, whole.
func (w *world) save() {
	w.Helper()
	text, err := json.Marshal(w.state)
	if err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(w.path+".new", text, 0o600); err != nil {
		w.Fatal(err)
	}
	if err := os.Rename(w.path+".new", w.path); err != nil {
		w.Fatal(err)
	}
}

// tcp returns the port of a web service.
func tcp(nodePort int32) corev1.ServicePort {
	return corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: nodePort}
}

// dns is the port of a service for UDP.
var dns = corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}

// services adds the Services that the tests of both backends ask.
func (w *world) services() {
	w.service("web", "10.0.0.2", vip, false, tcp(30001), "10.13.1.5", "10.13.2.5")
	w.service("local", "10.0.0.3", localVIP, true, tcp(30002), "10.13.1.5", "10.13.3.5")
	w.service("nobody", "10.0.0.4", "", false, tcp(0))
	w.service("dns", "10.0.0.10", "203.0.113.12", false, dns, "10.13.1.5")
	w.state.Options.SyncPeriod = time.Hour // what others do to the rules is heard of, or never seen
	w.save()
}

// service puts a service with its endpoints into the state, in place of one of the same name.
func (w *world) service(name, ip, lb string, local bool, port corev1.ServicePort, endpoints ...string) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: w.at(ip), Ports: []corev1.ServicePort{port}}
	if lb != "" {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: w.at(lb)}}
	}
	if local {
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 32364
	}
	number := port.Port
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressType(w.family.String()),
		Ports:       []discoveryv1.EndpointPort{{Name: &port.Name, Protocol: &port.Protocol, Port: &number}},
	}
	for _, e := range endpoints {
		node := "node0"
		if e == "10.13.3.5" {
			node = "node1"
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{w.at(e)}, NodeName: &node})
	}
	for i := range w.state.Services {
		if w.state.Services[i].Name == name {
			w.state.Services[i], w.state.EndpointSlices[i] = s, slice
			return
		}
	}
	w.state.Services = append(w.state.Services, s)
	w.state.EndpointSlices = append(w.state.EndpointSlices, slice)
}

// sticky gives a service session affinity.
func (w *world) sticky(name string) {
	for _, s := range w.state.Services {
		if s.Name == name {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
	}
}

// agentProcess is a running agent.
type agentProcess struct {
	*world
	cmd *exec.Cmd
	log *bytes.Buffer
	end chan error
}

func (w *world) agent() *agentProcess {
	w.Helper()
	p, started := w.launch()
	if !<-started {
		w.Fatalf("agent ended: %v\n%s", <-p.end, p.log)
	}
	return p
}

// launch starts an agent, which may wait before it begins; started receives when it has written rules, and false when it has ended.
func (w *world) launch() (p *agentProcess, started <-chan bool) {
	w.Helper()
	p = &agentProcess{world: w, cmd: w.role("node", "agent", w.path), log: &bytes.Buffer{}, end: make(chan error, 1)}
	pipe, err := p.cmd.StderrPipe()
	if err != nil {
		w.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	wrote := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(pipe)
		for lines.Scan() {
			p.log.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), `msg="synced `) {
				select {
				case wrote <- true:
				default: // a further write, for which the test does not wait
				}
			}
		}
		p.end <- p.cmd.Wait()
		close(wrote)
	}()
	w.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p, wrote
}

// stop ends the agent as init systems do.
func (p *agentProcess) stop() {
	p.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := <-p.end; err != nil {
		p.Fatalf("agent: %v\n%s", err, p.log)
	}
}

// ask makes one connection and gives the answer, "pod address" or "error: …".
func (w *world) ask(from, network, address string) string {
	w.Helper()
	return w.runClient(from, network, w.at(address))
}

// hasNoAnswer reports whether a connection times out.
func (w *world) hasNoAnswer(from, network, address string) bool {
	w.Helper()
	return strings.Contains(w.runClient(from, network, w.at(address), "impatient"), "timeout")
}

func (w *world) runClient(from string, args ...string) string {
	w.Helper()
	cmd := w.role(from, "client", args...)
	cmd.Stdin = strings.NewReader("hello\n")
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("client: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// answers makes n connections and counts the answers.
func (w *world) answers(n int, from, network, address string) map[string]int {
	w.Helper()
	count := map[string]int{}
	for range n {
		count[w.ask(from, network, address)]++
	}
	return count
}

func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	eventually.Succeeds(w, time.Minute, func() error {
		if !holds() {
			return fmt.Errorf("%s\n%s", what, w.sh("ip netns exec %s %s -t nat", w.node, w.tool("iptables-save")))
		}
		return nil
	})
}
