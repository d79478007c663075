package claims

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

// portOfNode matches a port of a node's first 1,024: 1024-2047.
const portOfNode = `(102[4-9]|10[3-9]\d|1[1-9]\d{2}|20[0-3]\d|204[0-7])`

// The VM and the internet's hosts of the Part 3 article's Azure CNI cluster.
const (
	outboundVM = "10.13.1.4"
	ifconfig   = "198.51.100.80"
	usedUp     = "198.51.100.81" // where nothing else goes, so that a node has all its ports towards it
)

// outbound is the Azure CNI world of the Part 3 article: Service whereami, whose front end nodes leave by, and a pod that belongs to none.
type outbound struct {
	*world.World
	pod corev1.Pod // ubuntu
	vip string     // of Service whereami
}

func outboundWorld(t *testing.T) *outbound {
	t.Helper()
	o := &outbound{World: world.Up(t, "outbound", "whereami.yaml", "ubuntu.yaml")}
	o.Kubectl(t, "wait", "--for=condition=Ready", "pod/ubuntu", "--timeout=120s")
	o.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	o.Get(t, &o.pod, "pod", "ubuntu")
	o.vip = o.inForce(t, "whereami")
	return o
}

// inForce waits until a Service is in force on every path, and returns its front end's address.
func (o *outbound) inForce(t *testing.T, service string) (vip string) {
	t.Helper()
	return o.WaitService(t, "default", service).Status.LoadBalancer.Ingress[0].IP
}

// frontend waits for a Service's front end.
func (o *outbound) frontend(t *testing.T, service string) (vip string) {
	t.Helper()
	eventually.Succeeds(t, 30*time.Second, func() error {
		var s corev1.Service
		o.Get(t, &s, "service", service)
		if len(s.Status.LoadBalancer.Ingress) == 0 {
			return errors.New("no front end yet")
		}
		vip = s.Status.LoadBalancer.Ingress[0].IP
		return nil
	})
	return vip
}

// calls gives what a host on the internet answers to the pod: the caller's address as it sees it.
func (o *outbound) calls(host string) (string, error) {
	out, err := o.Try(10*time.Second, "kubectl", "--name", o.Name, "exec", "ubuntu", "--", "curl", "-sS", "--max-time", "3", "http://"+host)
	return strings.TrimSpace(out), err
}

var allAgree = regexp.MustCompile(`(?m)^kernel: (\d+) of (\d+) steps agree$`)

// agrees walks a packet beside the kernel, checks that every step agrees, and gives the walk.
func agrees(t *testing.T, w *world.World, from, to string) string {
	t.Helper()
	out := w.Run(t, "walk", "--name", w.Name, "--from", from, "--to", to, "--live")
	if m := allAgree.FindStringSubmatch(out); m == nil || m[1] != m[2] {
		t.Errorf("from %s to %s the walk and the kernel part:\n%s", from, to, out)
	}
	return out
}

func TestB1(t *testing.T) {
	t.Parallel()
	o := outboundWorld(t)
	var ping string
	seen := o.Capture(t, "testvm", "eth0", "icmp", func() { ping = o.Kubectl(t, "exec", "ubuntu", "--", "ping", "-c", "2", outboundVM) })
	expect(t, ping, `^64 bytes from 10\.13\.1\.4: icmp_seq=2 ttl=64 `)
	pod := o.pod.Status.PodIP
	expect(t, seen, `IP `+regexp.QuoteMeta(pod)+` > 10\.13\.1\.4: ICMP echo request`,
		`IP 10\.13\.1\.4 > `+regexp.QuoteMeta(pod)+`: ICMP echo reply`)
	o.Kubectl(t, "exec", "ubuntu", "--", "curl", "-sS", "-o", "/dev/null", "http://"+outboundVM+"/b1")
	eventually.Succeeds(t, 30*time.Second, func() error {
		log := o.Run(t, "logs", "--name", o.Name, "vm/testvm")
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(pod) + ` - - .*"GET /b1 `).MatchString(log) {
			return fmt.Errorf("no line of %s in the VM's log:\n%s", pod, log)
		}
		return nil
	})
	expect(t, agrees(t, o.World, "pod/ubuntu", "vm/testvm:80"), `^the destination sees the sender's own address, `+regexp.QuoteMeta(pod)+`:`)
}

// openScript opens $2 connections to a host on the internet, $1, one after another, says "opened N", and holds them until its input ends.
const openScript = `ulimit -n 4096
opened=0
for i in $(seq $2); do
	exec {fd}<>/dev/tcp/$1/80 && opened=$((opened+1))
done
echo opened $opened
read -r end`

// hold opens connections from the pod, waits until the last is open, and returns what ends them.
func (o *outbound) hold(t *testing.T, host string, count int) (end func()) {
	t.Helper()
	_, out, end := o.Talk(t, "pod/default/ubuntu", openScript, host, fmt.Sprint(count))
	line, err := out.ReadString('\n')
	if want := fmt.Sprintf("opened %d\n", count); err != nil || line != want {
		t.Fatalf("%q %v, want %q", line, err, want)
	}
	return end
}

// status is what TestB3 reads of "packetwalk status -o json".
type status struct {
	Outbound []struct {
		Node    string
		Ports   int
		InUse   int
		Fullest struct {
			Destination string
			InUse       int
			Percent     int
		}
	}
	Warnings []string
}

func (o *outbound) status(t *testing.T) (s status) {
	t.Helper()
	if err := json.Unmarshal([]byte(o.Run(t, "status", "--name", o.Name, "-o", "json")), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Outbound) != 1 || s.Outbound[0].Node != part1Node {
		t.Fatalf("outbound ports of %+v", s.Outbound)
	}
	return s
}

func TestB3(t *testing.T) {
	t.Parallel()
	o := outboundWorld(t)
	group := strings.TrimSpace(o.Az(t, "aks", "show", "-g", "akstest", "-n", "aksPacketWalkAzure", "--query", "nodeResourceGroup", "-o",
		"tsv"))
	if got := o.Az(t, "network", "lb", "list", "-g", group, "--query", "[].[name,sku.name]", "-o", "tsv"); got != "kubernetes\tBasic\n" {
		t.Errorf("load balancers %q", got)
	}
	// As four minutes after whatever went there before; conntrack fails where there was nothing.
	_, _ = o.Try(10*time.Second, "ssh", "--name", o.Name, "fabric", "--", "conntrack", "-D", "-d", usedUp)
	if s := o.status(t); s.Outbound[0].Ports != 1024 || len(s.Warnings) != 0 {
		t.Errorf("before: %+v", s)
	}
	end := o.hold(t, usedUp, 1024)
	s := o.status(t)
	if u := s.Outbound[0]; u.InUse != 1024 || u.Fullest.Destination != usedUp+":80" || u.Fullest.InUse != 1024 || u.Fullest.Percent != 100 {
		t.Errorf("with 1,024 flows: %+v", s)
	}
	if len(s.Warnings) != 1 || !strings.HasPrefix(s.Warnings[0], part1Node+" has 1024 of its 1024 outbound ports in use towards tcp "+usedUp+
		":80") {
		t.Errorf("warnings %q", s.Warnings)
	}
	o.portsInKernel(t, 1024)
	expect(t, o.Run(t, "ports", "--name", o.Name), `^fabric +`+regexp.QuoteMeta(o.vip)+` +tcp `+regexp.QuoteMeta(usedUp)+
		`:80 \([^)]+\) +1024 +1024 \(100 %\) +node `+part1Node+`: 1024$`)
	expect(t, o.Run(t, "ports", "--name", o.Name, part1Node), `^node/`+part1Node+` +[0-9.]+ +tcp `+regexp.QuoteMeta(usedUp)+
		`:80 \([^)]+\) +1024 +64512 \(1 %\) +pod default/ubuntu: 1024$`)
	if seen, err := o.calls(usedUp); err == nil {
		t.Errorf("flow 1,025 to one destination works, from %s", seen)
	}
	expect(t, agrees(t, o.World, "pod/ubuntu", usedUp+":80"),
		`^the destination sees nothing: dropped on fabric(: no port is free| by azure nat-post \d+: .*no port is left)`)
	if seen, err := o.calls(ifconfig); err != nil || seen != o.vip {
		t.Errorf("a flow to another destination: %s, %v", seen, err)
	}
	expect(t, agrees(t, o.World, "pod/ubuntu", ifconfig+":80"), `^the destination sees `+regexp.QuoteMeta(o.vip)+`:`+portOfNode+`, after 2 translations$`)
	end()
}

// portsInKernel checks by the fabric's connections that so many flows towards usedUp leave by the front end, each with a port of the node's
// block. Flows that the server has ended count: it ends those without a request after a minute, which a busy machine may take until the check.
func (o *outbound) portsInKernel(t *testing.T, want int) {
	t.Helper()
	translated := regexp.MustCompile(`dst=` + regexp.QuoteMeta(usedUp) + ` .*src=` + regexp.QuoteMeta(usedUp) + ` dst=` +
		regexp.QuoteMeta(o.vip) + ` sport=80 dport=(\d+) `)
	ports := map[string]bool{}
	for _, m := range translated.FindAllStringSubmatch(o.SSH(t, "fabric", "conntrack", "-L", "-p", "tcp", "-d", usedUp), -1) {
		if port, err := strconv.Atoi(m[1]); err != nil || port < 1024 || port > 2047 {
			t.Errorf("a flow leaves by port %s, want one of 1024-2047", m[1])
		}
		ports[m[1]] = true
	}
	if len(ports) != want {
		t.Errorf("the kernel has flows by %d ports, want %d", len(ports), want)
	}
}

func TestB4(t *testing.T) {
	t.Parallel()
	o := outboundWorld(t)
	o.Kubectl(t, "apply", "-f", o.Example("outbound", "second.yaml"))
	t.Cleanup(func() { o.Kubectl(t, "delete", "service", "second") })
	second := o.inForce(t, "second")
	seen := map[string]int{}
	for range 20 { // all by one of two front ends: one time in 500,000
		address, err := o.calls(ifconfig)
		if err != nil {
			t.Fatal(err)
		}
		seen[address]++
	}
	if len(seen) != 2 || seen[o.vip] == 0 || seen[second] == 0 {
		t.Errorf("seen %v, want %s and %s", seen, o.vip, second)
	}
	for range 2 {
		expect(t, agrees(t, o.World, "pod/ubuntu", ifconfig+":80"), `^the destination sees 203\.0\.113\.\d+:`+portOfNode+`, after 2 translations$`)
	}
	expect(t, o.Run(t, "walk", "--name", o.Name, "--from", "pod/ubuntu", "--to", ifconfig+":80"),
		regexp.QuoteMeta(o.vip)+`:1024-2047`, regexp.QuoteMeta(second)+`:1024-2047`, `^  1  50 %  .*, SNAT 203\.0\.113\.\d+ → `)
}
