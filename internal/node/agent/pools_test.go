package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/service"
)

// filePools gives the agent its pools from the test's file.
type filePools struct{ fileSource }

func (s *filePools) Run(ctx context.Context) {
	if address := s.read().API; address != "" {
		go talk(ctx, address)
		time.Sleep(50 * time.Millisecond) // the answer's way
	}
	s.changed <- struct{}{}
	s.fileSource.Run(ctx)
}

// talk has a connection as an agent has one to the API server, and says when it goes.
func talk(ctx context.Context, address string) {
	c, err := net.Dial("tcp", address)
	for lines := bufio.NewReader(c); err == nil && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err = fmt.Fprintln(c, "list"); err == nil {
			_, err = lines.ReadString('\n')
		}
	}
	if ctx.Err() == nil {
		log.Printf("CONNECTION LOST: %v", err)
	}
}

func (s *filePools) Snapshot() (pools, configurations []*kube.Calico, complete bool) {
	st := s.read()
	return st.Pools, st.Felix, true
}

func (s *filePools) Warn(_ context.Context, about *kube.Calico, _, _, reason, message string) error {
	fmt.Fprintf(os.Stderr, "EVENT %s %s %s\n", reason, about.Name, message)
	return nil
}

// flowPorts are the ports from the first on that flows go to and that are listened to: one alone has too few flows before they repeat.
const (
	firstFlowPort = 9000
	flowPorts     = 8
)

// playSpray opens flows to an address, one UDP packet each from a port of its own, with a pause after each, until its standard input ends,
// and prints how many.
func playSpray(to, pause string) {
	rest, err := time.ParseDuration(pause)
	if err != nil {
		log.Fatal(err)
	}
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(end)
	}()
	for n := 0; ; n++ {
		select {
		case <-end:
			fmt.Println(n)
			return
		default:
		}
		c, err := net.Dial("udp4", net.JoinHostPort(to, strconv.Itoa(firstFlowPort+n%flowPorts)))
		if err != nil {
			log.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			log.Fatal(err)
		}
		_ = c.Close()
		time.Sleep(rest)
	}
}

// playSources receives packets until its standard input ends, and prints how many came from which address.
func playSources() {
	var mu sync.Mutex
	var all sync.WaitGroup
	var sockets []net.PacketConn
	count := map[string]int{}
	for i := range flowPorts {
		l, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", firstFlowPort+i))
		if err != nil {
			log.Fatal(err)
		}
		_ = l.(*net.UDPConn).SetReadBuffer(1 << 20)
		sockets = append(sockets, l)
		all.Go(func() {
			buffer := make([]byte, 16)
			for {
				_, from, err := l.ReadFrom(buffer)
				if err != nil {
					return
				}
				mu.Lock()
				count[from.(*net.UDPAddr).IP.String()]++
				mu.Unlock()
			}
		})
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	time.Sleep(100 * time.Millisecond) // the last ones on their way
	for _, l := range sockets {
		_ = l.Close()
	}
	all.Wait()
	_ = json.NewEncoder(os.Stdout).Encode(count)
}

// pool makes an IPPool; what is in the way of its being one is the caller's.
func pool(name, spec string) *kube.Calico {
	return &kube.Calico{TypeMeta: metav1.TypeMeta{Kind: "IPPool"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: json.RawMessage(spec)}
}

func (w *world) pools(pools ...*kube.Calico) {
	w.Helper()
	w.state.Pools = pools
	w.save()
}

// poolWorld is a node with an agent that has nothing to translate but by Calico's pools.
func poolWorld(t *testing.T, name string) *world {
	w := newWorld(t, name, BackendIPTables)
	w.state.Options.Rules = "1.19"
	w.state.Options.NodeMasquerade, w.state.Options.CalicoPools = nil, true
	w.save()
	return w
}

func (w *world) inNode(format string, args ...any) string {
	w.Helper()
	return w.sh("ip netns exec "+w.node+" "+format, args...)
}

// varying is what differs from one set, or one dump, to the next with nothing meant by it.
var varying = regexp.MustCompile(`(?m) (hashsize|bucketsize|initval) \S+| \[\d+:\d+\]$|^#.*\n`)

// poolDump is everything that the agent keeps of pools, as text.
func (w *world) poolDump() string {
	w.Helper()
	lines := strings.Split(varying.ReplaceAllString(w.inNode("ipset save"), ""), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n") + varying.ReplaceAllString(w.inNode("iptables-save -t nat"), "")
}

// settled waits until the dump is the one that is wanted.
func (w *world) settled(what, want string) {
	w.Helper()
	last := ""
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if last = w.poolDump(); last == want {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("%s: never as it is after a fresh start; now\n%s\nwant\n%s", what, last, want)
		}
	}
}

var (
	ours   = pool("default-ipv4-ippool", `{"cidr":"10.13.0.0/16","natOutgoing":true,"blockSize":26,"ipipMode":"Never"}`)
	theirs = pool("othervnet", `{"cidr":"198.51.100.0/24","natOutgoing":true,"disabled":true,"nodeSelector":"all()"}`)
)

const pod1 = "10.13.1.5"

// TestPoolsOnTheRealKernel: who sees which address with which pools, that open connections go on, and that the state is that of a fresh
// start whatever happened to it.
func TestPoolsOnTheRealKernel(t *testing.T) {
	t.Parallel()
	w := poolWorld(t, "pool")
	w.start("client", "endpoint", "outside")
	w.pools(ours)
	agent := w.agent()
	sees := func(address string) {
		t.Helper()
		w.eventually("the client sees "+address, func() bool { return w.ask("p1", "tcp", clientIP+":80") == "outside "+address })
	}
	sees(nodeIPs)
	w.eventually("claim C3's order", func() bool {
		lines := strings.Split(w.inNode("iptables -t nat -S POSTROUTING"), "\n")
		return lines[1] == `-A POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING` && // after -P
			lines[2] == `-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`
	})
	fresh := w.poolDump()
	if got := w.ask("p1", "tcp", "10.13.2.5:80"); got != "p2 "+pod1 {
		t.Errorf("within the pool: %s", got)
	}

	translated := w.hold("p1", "tcp", clientIP+":80")
	before := translated.say()
	w.pools(ours, theirs)
	sees(pod1)
	kept := w.hold("p1", "tcp", clientIP+":80")
	if got := kept.say(); !strings.HasSuffix(got, pod1) {
		t.Errorf("a connection in the pool's time: %s", got)
	}
	if got := translated.say(); got != before || !strings.HasSuffix(got, nodeIPs) {
		t.Errorf("a connection from before the pool: %s", got)
	}
	w.pools(ours)
	sees(nodeIPs)
	if got := kept.say(); !strings.HasSuffix(got, pod1) {
		t.Errorf("a connection from the pool's time: %s", got)
	}
	w.settled("pool made and deleted", fresh)

	w.Run("Repair", func(*testing.T) { w.repairPools(fresh) })
	w.Run("KilledHalfWay", func(*testing.T) { agent = w.killHalfWay(agent, fresh) })
	w.Run("InsertMode", func(t *testing.T) {
		w.state.Felix = []*kube.Calico{{TypeMeta: metav1.TypeMeta{Kind: "FelixConfiguration"}, ObjectMeta: metav1.ObjectMeta{Name: "default"},
			Spec: json.RawMessage(`{"chainInsertMode":"Append"}`)}}
		w.save()
		w.eventually("Calico's jump is last", func() bool {
			lines := strings.Split(strings.TrimSpace(w.inNode("iptables -t nat -S POSTROUTING")), "\n")
			return len(lines) == 3 && strings.Contains(lines[1], "KUBE-POSTROUTING") && strings.Contains(lines[2], "cali-POSTROUTING")
		})
		w.state.Felix = nil
		w.save()
		w.settled("back to Insert", fresh)
	})
	w.Run("NoPool", func(*testing.T) {
		w.pools()
		sees(pod1)
		w.eventually("no rule to translate", func() bool { return !strings.Contains(w.inNode("iptables-save -t nat"), "masq-ipam-pools") })
		w.pools(ours)
		w.settled("the pool is back", fresh)
	})
	agent.stop()
	if got := w.ask("p1", "tcp", clientIP+":80"); got != "outside "+nodeIPs {
		t.Errorf("after the agent's end: %s", got)
	}
}

// TestPoolsKeepTheAgentsOwnConnection: it begins before any rule, so perhaps before connections are tracked, and goes from a pool to what
// is in none.
func TestPoolsKeepTheAgentsOwnConnection(t *testing.T) {
	t.Parallel()
	w := poolWorld(t, "api")
	w.start("client", "endpoint", "api")
	w.state.API = clientIP + ":80"
	w.pools(pool("node", `{"cidr":"198.51.100.1/32","natOutgoing":true,"disabled":true}`))
	agent := w.agent()
	w.eventually("the pool", func() bool { return strings.Contains(w.inNode("ipset save"), "add cali40masq-ipam-pools 198.51.100.1") })
	time.Sleep(1500 * time.Millisecond) // longer than an answer may take
	agent.stop()
	if strings.Contains(agent.log.String(), "LOST") {
		t.Errorf("%s", agent.log)
	}
}

// repairPools: what is done by hand is undone.
func (w *world) repairPools(fresh string) {
	w.Helper()
	for _, damage := range []string{
		"iptables -t nat -F cali-nat-outgoing",
		"iptables -t nat -D POSTROUTING 1",
		"iptables -t nat -D PREROUTING -j cali-PREROUTING -m comment --comment cali:6gwbT8clXdHdC1b1",
		"sh -c 'ipset flush cali40all-ipam-pools; ipset add cali40masq-ipam-pools 10.99.0.0/16'",
		"sh -c 'iptables -t nat -F; iptables -t nat -X; ipset destroy'",
		"sh -c 'iptables -t nat -D POSTROUTING 1; iptables -t nat -A POSTROUTING -j cali-POSTROUTING'",
		"sh -c 'iptables -t nat -F cali-nat-outgoing; ipset destroy; ipset create cali40all-ipam-pools hash:ip; iptables -t nat -A cali-POSTROUTING -m set --match-set cali40all-ipam-pools src'",
	} {
		w.inNode("%s", damage)
		w.settled(damage, fresh)
	}
}

// killHalfWay: the agent starts on what an agent left that was killed between two of its steps, and is killed at any time while pools
// change.
func (w *world) killHalfWay(agent *agentProcess, fresh string) *agentProcess {
	w.Helper()
	kill := func() {
		_ = agent.cmd.Process.Kill()
		<-agent.end
	}
	kill()
	const empty = "iptables -t nat -F; iptables -t nat -X; ipset destroy"
	const sets = "; ipset create cali40all-ipam-pools hash:net; ipset add cali40all-ipam-pools 10.13.0.0/16; ipset add cali40all-ipam-pools 198.51.100.0/24"
	for _, left := range []string{
		empty,
		empty + "; ipset create cali40all-ipam-pools-tmp hash:net",
		empty + sets,
		empty + sets + " ; ipset create cali40masq-ipam-pools hash:net; ipset create cali40masq-ipam-pools-tmp hash:net; ipset add cali40masq-ipam-pools-tmp 10.13.0.0/16",
		empty + sets + " ; iptables -t nat -N cali-POSTROUTING; iptables -t nat -A POSTROUTING -j cali-POSTROUTING",
	} {
		w.inNode("sh -c '%s'", left)
		agent = w.agent()
		w.settled("after "+left, fresh)
		kill()
	}
	for i := range 8 {
		agent = w.agent()
		for j := range 1 + i%3 {
			w.pools([][]*kube.Calico{{ours, theirs}, {theirs}, {}}[(i+j)%3]...)
			time.Sleep(time.Duration(10+7*i) * time.Millisecond)
		}
		kill()
	}
	w.pools(ours)
	agent = w.agent()
	w.settled("after kill -9 at any time", fresh)
	return agent
}

// TestPoolsBesideTheIPMasqAgent: Calico's jump stands first, as in claim E10, or last, and neither of the two goes on moving its own; IPv6
// has sets and chains of its own.
func TestPoolsBesideTheIPMasqAgent(t *testing.T) {
	t.Parallel()
	w := poolWorld(t, "both")
	o := &w.state.Options
	o.Rules, o.IPMasqAgent, o.Families = "1.12", true, []service.Family{service.IPv4, service.IPv6}
	six := pool("six", `{"cidr":"fd00:10:240::/48","natOutgoing":true}`)
	w.pools(ours, six)
	agent := w.agent()
	order := func(command string) string {
		var targets []string
		for line := range strings.Lines(w.inNode("%s -t nat -S POSTROUTING", command)) {
			if _, target, ok := strings.Cut(strings.TrimSpace(line), " -j "); ok {
				targets = append(targets, target)
			}
		}
		return strings.Join(targets, " ")
	}
	w.eventually("E10's order, with docker0's rule", func() bool {
		return order("iptables") == "cali-POSTROUTING KUBE-POSTROUTING MASQUERADE IP-MASQ-AGENT" &&
			order("ip6tables") == "cali-POSTROUTING KUBE-POSTROUTING IP-MASQ-AGENT"
	})
	w.eventually("IPv6's set", func() bool {
		return strings.Contains(w.inNode("ipset save"), "add cali60masq-ipam-pools fd00:10:240::/48\n")
	})
	if rules := w.inNode("ip6tables-save -t nat"); !strings.Contains(rules, "--match-set cali60masq-ipam-pools src -m set ! --match-set cali60all-ipam-pools dst -j MASQUERADE") {
		t.Errorf("IPv6 has no rule for the pool:\n%s", rules)
	}
	w.state.Felix = []*kube.Calico{{TypeMeta: metav1.TypeMeta{Kind: "FelixConfiguration"}, ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: json.RawMessage(`{"chainInsertMode":"Append"}`)}}
	w.save()
	w.eventually("Calico last", func() bool { return order("iptables") == "KUBE-POSTROUTING MASQUERADE IP-MASQ-AGENT cali-POSTROUTING" })
	w.inNode("iptables -t nat -D POSTROUTING -j cali-POSTROUTING -m comment --comment cali:O3lYWMrLQYEMJtB5") // so that everybody looks again
	w.eventually("Calico last again", func() bool { return order("iptables") == "KUBE-POSTROUTING MASQUERADE IP-MASQ-AGENT cali-POSTROUTING" })
	time.Sleep(500 * time.Millisecond)
	agent.stop()
	if n := strings.Count(agent.log.String(), "wrote"); n > 10 {
		t.Errorf("%d times rules were written:\n%s", n, agent.log)
	}
}

// TestPoolsNeverTranslateByTheWay: flows that neither the old nor the new pools translate are not translated while the one becomes the
// other, and those that both translate are.
func TestPoolsNeverTranslateByTheWay(t *testing.T) {
	t.Parallel()
	w := poolWorld(t, "flow")
	nat := func(name, cidr string) *kube.Calico { return pool(name, `{"cidr":"`+cidr+`","natOutgoing":true}`) }
	plain := func(name, cidr string) *kube.Calico { return pool(name, `{"cidr":"`+cidr+`"}`) }
	// p1 (10.13.1.5) to the client is translated by none of these: its range has no natOutgoing, or the client's is a pool. p2 to p3 is by
	// all.
	steady := nat("steady", "10.13.2.0/24")
	turns := [][]*kube.Calico{
		{steady},
		{steady, nat("a", "10.13.1.0/24"), plain("b", "198.51.100.0/24")},
		{steady, plain("c", "198.51.100.0/25")},
		{steady, nat("d", "10.13.0.0/23"), plain("e", "198.51.0.0/16")},
	}
	w.pools(turns[0]...)
	agent := w.agent()
	w.eventually("rules", func() bool { return strings.Contains(w.inNode("iptables-save -t nat"), "masq-ipam-pools") })
	toClient, toPod := w.receive("client"), w.receive("p3")
	flows := []*generator{w.generate("p1", clientIP, 0), w.generate("p2", "10.13.3.5", time.Millisecond)}
	changes := 0
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); changes++ {
		w.pools(turns[(changes+1)%len(turns)]...)
		time.Sleep(time.Duration(110+changes%20) * time.Millisecond)
	}
	sent := 0
	for _, f := range flows {
		sent += f.stop()
	}
	seen, seenInPod := toClient.stop(), toPod.stop()
	agent.stop()
	wrote := strings.Count(agent.log.String(), "calico pools: wrote")
	t.Logf("%d flows, %d changes of pools, %d writes: the client saw %v, the pod %v", sent, changes, wrote, seen, seenInPod)
	if seen[pod1] < 1000 || len(seen) != 1 {
		t.Errorf("the client saw %v; want the pod's own address alone", seen)
	}
	if seenInPod["10.13.3.1"] < 100 || len(seenInPod) != 1 {
		t.Errorf("the pod saw %v; want the node's address alone", seenInPod)
	}
	if wrote < changes/2 {
		t.Errorf("%d writes for %d changes: too few for this test to mean anything", wrote, changes)
	}
}

// generator is a program that works until its standard input ends, and then prints what it has to say.
type generator struct {
	*world
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

func (w *world) background(namespace, role string, args ...string) *generator {
	w.Helper()
	g := &generator{world: w, cmd: w.role(namespace, role, args...)}
	in, err := g.cmd.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		w.Fatal(err)
	}
	g.cmd.Stderr = os.Stderr
	g.in, g.out = in, bufio.NewReader(out)
	if err := g.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = g.cmd.Process.Kill(); _ = g.cmd.Wait() })
	return g
}

func (g *generator) line() string {
	g.Helper()
	line, err := g.out.ReadString('\n')
	if err != nil {
		g.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (w *world) generate(from, to string, pause time.Duration) *generator {
	return w.background(from, "spray", to, pause.String())
}

// stop ends the flows and tells how many there were.
func (g *generator) stop() int {
	g.Helper()
	_ = g.in.Close()
	n, err := strconv.Atoi(g.line())
	if err != nil {
		g.Fatal(err)
	}
	return n
}

// receiver counts packets by source.
type receiver struct{ *generator }

func (w *world) receive(at string) receiver {
	w.Helper()
	r := receiver{w.background(at, "sources")}
	if line := r.line(); line != "ready" {
		w.Fatal(line)
	}
	return r
}

func (r receiver) stop() map[string]int {
	r.Helper()
	_ = r.in.Close()
	count := map[string]int{}
	if err := json.Unmarshal([]byte(r.line()), &count); err != nil {
		r.Fatal(err)
	}
	return count
}
