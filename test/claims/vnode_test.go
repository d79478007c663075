package claims

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

const (
	vnodeNode   = "aks-nodepool1-26711606-0" // the machine of the Part 5 article
	virtualNode = "virtual-node-aci-linux"
	vnodeGroup  = "MC_akstest_azurecnicluster_westeurope"
)

// vnode is the world of the Part 5 article with its Deployment: a pod on the machine, and one on the virtual node.
type vnode struct {
	*world.World
	vm, aci corev1.Pod
	vip     string
	service corev1.Service
}

func vnodeWorld(t *testing.T) *vnode {
	t.Helper()
	v := &vnode{World: world.Up(t, "virtual-node", "kuard-vnode.yaml")}
	v.Kubectl(t, "rollout", "status", "deployment/kuard-vnode", "--timeout=120s")
	eventually.Succeeds(t, time.Minute, func() error {
		pods := v.Pods(t, "-l", "app=kuard-vnode")
		v.vm, v.aci = corev1.Pod{}, corev1.Pod{}
		for _, p := range pods {
			if p.Spec.NodeName == virtualNode {
				v.aci = p
			} else {
				v.vm = p
			}
		}
		if len(pods) != 2 || v.vm.Name == "" || v.aci.Name == "" {
			return fmt.Errorf("%d pods, want one on %s and one on %s", len(pods), vnodeNode, virtualNode)
		}
		return nil
	})
	v.WaitFelix(t, v.vm)
	v.service = v.WaitService(t, "default", "kuard-vnode")
	v.vip = v.service.Status.LoadBalancer.Ingress[0].IP
	return v
}

// kuard is what kuard's page tells of a request: the pod that answers, and the address that it sees.
type kuard struct {
	Addrs       []string `json:"addrs"`
	RequestAddr string   `json:"requestAddr"`
}

var kuardContext = regexp.MustCompile(`(?m)^var pageContext = (\{.*\})$`)

func parseKuard(page string) (k kuard, err error) {
	m := kuardContext.FindStringSubmatch(page)
	if m == nil {
		return k, fmt.Errorf("no page of kuard: %q", page)
	}
	return k, json.Unmarshal([]byte(m[1]), &k)
}

// ask asks the load balancer from the internet.
func (v *vnode) ask() (kuard, error) {
	page, err := v.Try(20*time.Second, "ssh", "--name", v.Name, "client", "--", "curl", "-sS", "--max-time", "5", "http://"+v.vip+":8080")
	if err != nil {
		return kuard{}, err
	}
	return parseKuard(page)
}

// walkAgrees walks a packet, also through the kernel, which must go the same way at every step.
func (v *vnode) walkAgrees(t *testing.T, from, to string, patterns ...string) string {
	t.Helper()
	out := v.Run(t, "walk", "--name", v.Name, "--from", from, "--to", to, "--live")
	m := regexp.MustCompile(`(?m)^kernel: (\d+) of (\d+) steps agree$`).FindStringSubmatch(out)
	if m == nil || m[1] != m[2] {
		t.Errorf("the walk and the kernel do not agree in full:\n%s", out)
	}
	expect(t, out, patterns...)
	return out
}

func TestE1(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	connector := strings.Fields(v.Kubectl(t, "-n", "kube-system", "get", "pods", "-l", "app=aci-connector-linux", "-o",
		"jsonpath={.items[*].status.podIP} {.items[*].spec.nodeName}"))
	if len(connector) != 2 || connector[1] != vnodeNode {
		t.Fatalf("connector's address and node: %v", connector)
	}
	expect(t, v.Kubectl(t, "get", "nodes", "-o", "wide"),
		`^`+vnodeNode+` +Ready +agent +\S+ +v\S+ +10\.13\.76\.4 `,
		`^`+virtualNode+` +Ready +agent +\S+ +v1\.\d+\.\d+-vk-v\S+ +`+regexp.QuoteMeta(connector[0])+` +<none> +<unknown> +<unknown> +<unknown>`)
	// The node's address is a pod's, which other machines reach by the pod's node.
	v.walkAgrees(t, "vm/testvm", connector[0]+":10250", `^node `+vnodeNode+`$`, `^  end +delivered to .*:10250`)
}

func TestE2(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	expect(t, v.Kubectl(t, "describe", "node", vnodeNode), `^Taints: +<none>$`)
	expect(t, v.Kubectl(t, "describe", "node", virtualNode), `^Taints: +virtual-kubelet\.io/provider=azure:NoSchedule$`,
		`^ +type=virtual-kubelet$`)
	// The machine cannot hold all of these, and the virtual node could.
	v.demand(t, "intolerant", 4)
	eventually.Succeeds(t, 30*time.Second, func() error {
		where := v.placed(t, "intolerant")
		if where[virtualNode] > 0 {
			t.Fatalf("pods without the toleration are on the virtual node: %v", where)
		}
		if where[""] == 0 || where[vnodeNode] == 0 {
			return fmt.Errorf("pods are on %v, want some on %s and some nowhere", where, vnodeNode)
		}
		return nil
	})
	eventually.Succeeds(t, 30*time.Second, func() error {
		return matches(v.Kubectl(t, "get", "events", "--field-selector", "reason=FailedScheduling"),
			`1 Insufficient cpu, 1 node\(s\) had untolerated taint`)
	})
}

// TestE3: pods with the article's tolerations and affinity go to the machine first, and to the virtual node when it is full.
func TestE3(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	// The article's manifest as it is: the scheduler spreads a Service's pods, too. Of the same pods without a Service the first goes to
	// the machine, and so do those after it while it has room.
	if where := v.placed(t, "kuard-vnode"); where[vnodeNode] != 1 || where[virtualNode] != 1 {
		t.Errorf("the article's two pods are on %v, want one on %s and one on %s", where, vnodeNode, virtualNode)
	}
	text, err := os.ReadFile(v.Example("virtual-node", "kuard-vnode.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	deployment, _, _ := strings.Cut(string(text), "\n---\n")
	deployment = strings.NewReplacer("kuard-vnode", "spill", "replicas: 2", "replicas: 1").Replace(deployment)
	if _, err := v.TryInput(time.Minute, deployment, "kubectl", "--name", v.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Kubectl(t, "delete", "deployment", "spill", "--cascade=foreground") })
	v.Kubectl(t, "rollout", "status", "deployment/spill", "--timeout=120s")
	if where := v.placed(t, "spill"); where[vnodeNode] != 1 {
		t.Errorf("the first pod is on %v, want %s", where, vnodeNode)
	}
	const replicas = 8 // of half a core; the machine has two, and a pod of kuard-vnode
	v.Kubectl(t, "scale", "deployment/spill", fmt.Sprint("--replicas=", replicas))
	v.Kubectl(t, "rollout", "status", "deployment/spill", "--timeout=120s")
	if where := v.placed(t, "spill"); where[vnodeNode] != 3 || where[virtualNode] != replicas-3 {
		t.Errorf("pods are on %v, want three on %s, which holds no more, and the others on %s", where, vnodeNode, virtualNode)
	}
}

// demand makes a Deployment of pods of which the machine holds two at most, until the test ends.
func (v *vnode) demand(t *testing.T, name string, replicas int) {
	t.Helper()
	var node corev1.Node
	v.Get(t, &node, "node", vnodeNode)
	cpu := node.Status.Allocatable.Cpu().MilliValue() * 34 / 100
	manifest := fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: registry.k8s.io/pause, resources: {requests: {cpu: %[3]dm, memory: 100M}}}
`, name, replicas, cpu)
	if _, err := v.TryInput(time.Minute, manifest, "kubectl", "--name", v.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Kubectl(t, "delete", "deployment", name, "--cascade=foreground") })
}

// placed counts an application's pods by node; those that wait for one are on "".
func (v *vnode) placed(t *testing.T, app string) map[string]int {
	t.Helper()
	var pods corev1.PodList
	v.Get(t, &pods, "pods", "-l", "app="+app)
	where := map[string]int{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			where[p.Spec.NodeName]++
		}
	}
	return where
}

func TestE4(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	expect(t, v.aci.Status.PodIP, `^10\.13\.100\.\d+$`)
	expect(t, v.vm.Status.PodIP, `^10\.13\.76\.\d+$`)
	expect(t, v.Kubectl(t, "logs", v.aci.Name), `Serving on HTTP on :8080$`)
	if got := strings.TrimSpace(v.Kubectl(t, "exec", v.aci.Name, "--", "echo", "in the container group")); got != "in the container group" {
		t.Errorf("exec: %q", got)
	}
	v.walkAgrees(t, "vm/testvm", "pod/"+v.aci.Name+":8080", `^container group default-`+v.aci.Name+`$`, `^the destination sees .*10\.13\.1\.4`)
}

func TestE5(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	ip := regexp.QuoteMeta(v.aci.Status.PodIP)
	expect(t, v.Az(t, "container", "list", "-o", "table"),
		`^Name +ResourceGroup +Status +Image +CPU/Memory +OsType +Location +IP:ports +Network$`,
		`^default-`+v.aci.Name+` +`+vnodeGroup+` +Succeeded +gcr\.io/kuar-demo/kuard-amd64:blue +0\.5 core/1\.5 gb +Linux +westeurope +`+ip+
			`:8080,8080 +Private$`)
	var group struct {
		IPAddress    struct{ IP, Type string }
		Tags         map[string]string
		InstanceView struct{ State string }
	}
	if err := json.Unmarshal([]byte(v.Az(t, "container", "show", "-g", vnodeGroup, "-n", "default-"+v.aci.Name)), &group); err != nil {
		t.Fatal(err)
	}
	if group.IPAddress.IP != v.aci.Status.PodIP || group.IPAddress.Type != "Private" || group.Tags["UID"] != string(v.aci.UID) ||
		group.InstanceView.State != "Running" {
		t.Errorf("az container show: %+v", group)
	}
	expect(t, v.Az(t, "container", "logs", "-g", vnodeGroup, "-n", "default-"+v.aci.Name), `Serving on HTTP on :8080$`)
}

func TestE6(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	pool := v.Az(t, "network", "lb", "address-pool", "show", "-g", vnodeGroup, "--lb-name", "kubernetes", "-n", "kubernetes", "--query",
		"backendIpConfigurations[].id", "-o", "tsv")
	if ids := strings.Fields(pool); len(ids) != 1 ||
		!strings.HasSuffix(ids[0], "/networkInterfaces/aks-nodepool1-26711606-nic-0/ipConfigurations/ipconfig1") {
		t.Errorf("the load balancer's pool has %v, want the machine's address only", ids)
	}
	count := map[string]int{}
	const requests = 60
	for range requests {
		k, err := v.ask()
		if err != nil {
			t.Fatal(err)
		}
		count[k.Addrs[0]]++
	}
	// Of 60 fair coins less than 12 fall on one side once in a million times.
	if a, b := count[v.vm.Status.PodIP], count[v.aci.Status.PodIP]; a+b != requests || min(a, b) < 12 {
		t.Errorf("requests by answering pod: %v, want half of them by %s", count, v.aci.Status.PodIP)
	}
	v.walkAgrees(t, "internet/client", "svc/kuard-vnode", `^node `+vnodeNode+`$`)
}

func TestE7(t *testing.T) {
	t.Parallel()
	for what, lines := range map[string]int{
		"kuard-vnode": 10, "AXSEUH3JK6RISVJZ": 8, "4RGWI3S4SEKPJ55Y": 3,
		"-A KUBE-SEP-PFDO2KGI5VXHCUTC": 2, "-A KUBE-SEP-DSPMX7OQIPXIOG5Z": 2, "-A KUBE-SEP-FDOYREXGM5TS33NA": 2,
	} {
		sameAsSeed(t, "e7-virtual-node-1.12.txtar", what, lines)
	}
	// The same on the running cluster, with its addresses and ports.
	v := vnodeWorld(t)
	rules := v.SSH(t, vnodeNode, "iptables-save", "-t", "nat")
	expect(t, rules,
		`^-A KUBE-FW-AXSEUH3JK6RISVJZ -m comment --comment "default/kuard-vnode: loadbalancer IP" -j KUBE-MARK-MASQ$`,
		`^-A KUBE-FW-AXSEUH3JK6RISVJZ -m comment --comment "default/kuard-vnode: loadbalancer IP" -j KUBE-SVC-AXSEUH3JK6RISVJZ$`,
		`^-A KUBE-FW-AXSEUH3JK6RISVJZ -m comment --comment "default/kuard-vnode: loadbalancer IP" -j KUBE-MARK-DROP$`,
		fmt.Sprintf(`^-A KUBE-NODEPORTS -p tcp -m comment --comment "default/kuard-vnode:" -m tcp --dport %d -j KUBE-SVC-AXSEUH3JK6RISVJZ$`,
			v.service.Spec.Ports[0].NodePort),
		`^-A KUBE-SERVICES ! -s 10\.13\.76\.0/24 -d `+v.service.Spec.ClusterIP+
			`/32 -p tcp -m comment --comment "default/kuard-vnode: cluster IP" -m tcp --dport 8080 -j KUBE-MARK-MASQ$`,
		`^-A KUBE-SERVICES -d `+v.vip+
			`/32 -p tcp -m comment --comment "default/kuard-vnode: loadbalancer IP" -m tcp --dport 8080 -j KUBE-FW-AXSEUH3JK6RISVJZ$`,
		`^-A KUBE-SVC-AXSEUH3JK6RISVJZ -m statistic --mode random --probability 0\.50000000000 -j KUBE-SEP-\S+$`,
		`^-A KUBE-SEP-\S+ -s `+v.aci.Status.PodIP+`/32 -j KUBE-MARK-MASQ$`,
		`^-A KUBE-SEP-\S+ -p tcp -m tcp -j DNAT --to-destination `+v.aci.Status.PodIP+`:8080$`)
}

func TestE8(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	for range 40 {
		k, err := v.ask()
		if err != nil {
			t.Fatal(err)
		}
		if k.Addrs[0] != v.aci.Status.PodIP {
			continue
		}
		if !strings.HasPrefix(k.RequestAddr, nodeIP+":") {
			t.Errorf("the container group sees %s, want the node's address %s", k.RequestAddr, nodeIP)
		}
		expect(t, v.SSH(t, vnodeNode, "conntrack", "-L", "-s", client, "-d", v.vip),
			`src=`+client+` dst=`+v.vip+` sport=\d+ dport=8080 src=`+v.aci.Status.PodIP+` dst=`+nodeIP+` sport=8080 dport=\d+`)
		return
	}
	t.Error("none of 40 requests was answered by the container group")
}

// originless takes from a route what iproute2 prints of its origin, which the article's busybox does not.
var originless = regexp.MustCompile(` proto \S+`)

func TestE15(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	var got []string
	for line := range strings.Lines(v.Kubectl(t, "exec", v.aci.Name, "--", "ip", "route")) {
		got = append(got, strings.TrimSpace(originless.ReplaceAllString(line, "")))
	}
	want := []string{
		"default via 169.254.0.1 dev eth1",
		"10.0.0.0/8 via 10.13.100.1 dev eth0",
		"10.13.100.0/24 dev eth0 scope link src " + v.aci.Status.PodIP,
		"169.254.0.0/16 dev eth1 scope link src 169.254.0.4",
		"172.16.0.0/12 via 10.13.100.1 dev eth0",
		"192.168.0.0/16 via 10.13.100.1 dev eth0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("routes:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The default route leads to the internet, by the machine under the group.
	seen := v.Kubectl(t, "exec", v.aci.Name, "--", "curl", "-sS", "--max-time", "5", "http://198.51.100.80")
	v.walkAgrees(t, "pod/"+v.aci.Name, "internet/ifconfig.co:80",
		`^  route +via 169\.254\.0\.1 dev eth1 \(table main: default\)$`, `^container host default-`+v.aci.Name+`$`,
		`^the destination sees `+regexp.QuoteMeta(strings.TrimSpace(seen))+`:`)
}

func TestE16(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	out := v.Kubectl(t, "exec", v.aci.Name, "--", "ip", "-o", "-4", "address")
	expect(t, out, `eth0 +inet `+regexp.QuoteMeta(v.aci.Status.PodIP)+`/24 .*scope global eth0`,
		`eth1 +inet 169\.254\.0\.4/16 .*scope global eth1`)
	expect(t, v.Kubectl(t, "exec", v.aci.Name, "--", "ip", "link"), `^\d+: eth0@if\d+: `, `^\d+: eth1@if\d+: `)
	// Both lead somewhere: to a machine in the virtual network, and to the internet.
	v.walkAgrees(t, "pod/"+v.aci.Name, "vm/testvm:80", `^  out +eth0$`,
		`^the destination sees the sender's own address, `+regexp.QuoteMeta(v.aci.Status.PodIP))
	v.walkAgrees(t, "pod/"+v.aci.Name, "internet/ifconfig.co:80", `^  out +eth1$`)
}

func TestE17(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	eventually.Succeeds(t, 30*time.Second, func() error { // the group's service proxy follows the cluster as a node's does
		_, err := v.Try(20*time.Second, "kubectl", "--name", v.Name, "exec", v.aci.Name, "--", "wget", "-q", "-T", "5", "-O", "/dev/null",
			"http://"+v.service.Spec.ClusterIP+":8080")
		return err
	})
	// Why: the rules are in the group's own namespace, written by a service proxy beside the group.
	v.walkAgrees(t, "pod/"+v.aci.Name, "svc/kuard-vnode",
		`^container group default-`+v.aci.Name+`\n(  .*\n)*  dnat +`+regexp.QuoteMeta(v.service.Spec.ClusterIP)+
			`:8080 → .*:8080 +by nat KUBE-SEP-\S+ 2: DNAT$`)
	expect(t, v.Run(t, "status", "--name", v.Name), `^default-`+v.aci.Name+` +`+regexp.QuoteMeta(v.aci.Status.PodIP)+
		` +Running +1/1 +up \(pid \d+\)$`)
	expect(t, v.SSH(t, "container-group/default-"+v.aci.Name, "iptables-save", "-t", "nat"),
		`^-A KUBE-SERVICES .* -d `+v.service.Spec.ClusterIP+`/32 .*"default/kuard-vnode: cluster IP"`)
}
