package agent

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// TestHandOver puts another service proxy beside an agent with nftables, under connections: the agent keeps its table until the other's
// rules are in force, then removes it, takes over when the other has ended, and leaves no table when it is told to stop beside the other.
// No connection is lost.
func TestHandOver(t *testing.T) {
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		for _, mode := range []string{options.BackendIPTables, options.BackendNFTables} {
			t.Run(family.String()+" to "+mode, func(t *testing.T) { handsOver(t, family, mode) })
		}
	}
}

func handsOver(t *testing.T, family service.Family, mode string) {
	t.Parallel()
	w := newWorldOf(t, family, iptables.RulesCurrent, options.BackendNFTables+mode)
	w.state.Options.Backend = options.BackendNFTables
	w.state.Options.NodeMasquerade, w.state.Options.DockerBridge = nil, netip.Prefix{}
	w.service("web", "10.0.0.2", vip, false, tcp(30001), "10.13.1.5", "10.13.2.5")
	w.service("nobody", "10.0.0.4", "", false, tcp(0))
	w.state.Options.SyncPeriod = time.Second // how often it looks for another service proxy
	w.save()
	proxy := w.kubeProxy()
	w.kubeProxysRules(mode, true)
	agent, started := w.launch()
	stop := w.connections()
	w.eventually("it waits", func() bool { return len(w.ready("10256").Waiting) == 1 })
	_ = proxy.Process.Kill()
	if !<-started {
		t.Fatalf("it ended\n%s", agent.log)
	}
	w.eventually("it takes over", func() bool { return w.hasTable() && w.ready("10256").Waiting == nil })

	began := time.Now()
	phase := func(what string) { t.Logf("%v %s", time.Since(began).Round(time.Millisecond), what) }
	proxy = w.kubeProxy()
	w.eventually("it sees the other", func() bool { return w.counts("packetwalk_proxy_other_service_proxies", "1") })
	w.kubeProxysRules(mode, false)
	looked := time.Now()
	w.eventually("several looks", func() bool { return time.Since(looked) > 3*quickTiming.canary })
	if r := w.ready("10256"); !w.hasTable() || r.Waiting != nil {
		t.Errorf("it handed over to rules without the service: table %v, %+v", w.hasTable(), r)
	}
	w.kubeProxysRules(mode, true)
	w.eventually("it hands over", func() bool { return !w.hasTable() && len(w.ready("10256").Waiting) == 1 })
	phase("handed over")
	_ = proxy.Process.Kill()
	w.eventually("it takes over again, and the other's rules go", func() bool {
		return w.hasTable() && w.ready("10256").Waiting == nil && !w.hasKubeProxysRules(mode)
	})
	phase("took over")

	proxy = w.kubeProxy()
	w.kubeProxysRules(mode, true)
	phase("other rules")
	_ = agent.cmd.Process.Signal(syscall.SIGTERM)
	if err := <-agent.end; err != nil || w.hasTable() {
		t.Errorf("told to stop beside another service proxy: %v, table %v\n%s", err, w.hasTable(), agent.log)
	}
	phase("ended")
	stop()
	_ = proxy.Process.Kill()
}

// TestOrphan ends an agent with nftables by SIGKILL, and puts another service proxy in its place: its rules are in force at once, and the
// next agent, which waits, removes the table.
func TestOrphan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, iptables.RulesCurrent, options.BackendNFTables)
	w.service("web", "10.0.0.2", vip, false, tcp(30001), "10.13.1.5")
	w.save()
	agent := w.agent()
	_ = agent.cmd.Process.Kill()
	<-agent.end
	w.sh("ip -n %s-p1 link set eth0 down", w.id) // the endpoint is gone
	w.service("web", "10.0.0.2", vip, false, tcp(30001), "10.13.2.5")
	w.save()
	w.kubeProxy()
	w.kubeProxysRules(options.BackendIPTables, true)
	if !w.hasTable() {
		t.Fatal("the table is gone, so nothing is shown")
	}
	for _, from := range []string{"client", "node", "p3"} {
		to := map[bool]string{true: vip + ":80", false: "10.0.0.2:80"}[from == "client"]
		for range 20 {
			if got := w.ask(from, "tcp", to); !strings.HasPrefix(got, "p2 ") {
				t.Fatalf("from %s: %s", from, got)
			}
		}
	}
	w.launch()
	w.eventually("the next agent removes the table", func() bool { return !w.hasTable() })
}

// TestEndsForGood deletes the agent's DaemonSet where no other service proxy runs: the rules go when none has come.
func TestEndsForGood(t *testing.T) {
	for _, backend := range []string{options.BackendIPTables, options.BackendNFTables} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, iptables.RulesCurrent, backend)
			w.state.Options.NodeMasquerade, w.state.Options.DockerBridge = nil, netip.Prefix{}
			w.state.Options.CleanupOnDelete = "kube-system/pw"
			w.services()
			agent := w.agent()
			w.state.Deleted = true
			w.save()
			_ = agent.cmd.Process.Signal(syscall.SIGTERM)
			w.service("web", "10.0.0.2", vip, false, tcp(30001), "10.13.2.5")
			w.save()
			w.eventually("it keeps the rules up to date while another service proxy may come", func() bool {
				for range 2 { // one answer may be chance
					if !strings.HasPrefix(w.ask("client", "tcp", vip+":80"), "p2 ") {
						return false
					}
				}
				return true
			})
			if err := <-agent.end; err != nil {
				t.Errorf("%v\n%s", err, agent.log)
			}
			rules := w.sh("ip netns exec %s nft list ruleset", w.node)
			if strings.Contains(rules, nftables.TableName) || strings.Contains(rules, "KUBE-SERVICES") {
				t.Errorf("left:\n%s", rules)
			}
		})
	}
}

// connections makes connections to the service web until stop is called, which reports those that failed.
func (w *world) connections() (stop func()) {
	began := time.Now()
	done, failed := make(chan struct{}), make(chan []string)
	go func() {
		var errs []string
		for n := 0; ; n++ {
			select {
			case <-done:
				w.Logf("%d connections", n)
				failed <- errs
				return
			default:
			}
			from, to := "client", vip+":80"
			if n%2 == 1 {
				from, to = "p3", "10.0.0.2:80"
			}
			cmd := w.role(from, "client", "tcp", w.at(to))
			cmd.Stdin = strings.NewReader("hello\n")
			if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "p") {
				errs = append(errs, fmt.Sprintf("%v %s to %s: %s, %v", time.Since(began).Round(time.Millisecond), from, to, out, err))
			}
		}
	}()
	return func() {
		w.Helper()
		close(done)
		if errs := <-failed; len(errs) > 0 {
			w.Errorf("%d connections failed: %s", len(errs), strings.Join(errs[:min(len(errs), 5)], "; "))
		}
	}
}

func (w *world) counts(metric, value string) bool {
	return strings.Contains(w.sh("ip netns exec %s curl -s http://127.0.0.1:10249/metrics", w.node), metric+`{node="node0"} `+value+"\n")
}

func (w *world) hasTable() bool {
	return strings.Contains(w.nft("list tables"), "table "+w.tool("ip")+" "+nftables.TableName+"\n")
}

func (w *world) hasKubeProxysRules(mode string) bool {
	if mode == options.BackendNFTables {
		return strings.Contains(w.nft("list tables"), "table "+w.tool("ip")+" kube-proxy\n")
	}
	return strings.Contains(w.sh("ip netns exec %s %s", w.node, w.tool("iptables-save")), ":KUBE-SERVICES ")
}

// kubeProxysRules writes the rules that kube-proxy has, of all services or of none.
func (w *world) kubeProxysRules(mode string, services bool) {
	w.Helper()
	st := w.state
	if !services {
		w.state.Services, w.state.EndpointSlices = nil, nil
	}
	path := w.path
	w.path = filepath.Join(w.TempDir(), "kube-proxy.json")
	w.state.Options.Backend = mode
	w.save()
	if out, err := w.role("node", "kube-proxy", w.path).CombinedOutput(); err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	w.path, w.state = path, st
}

// playKubeProxy writes rules with the names and forms of kube-proxy: of iptables by our own syncer, which writes the same.
func playKubeProxy(path string) error {
	st := (&fileSource{path: path}).read()
	family := st.Options.Families[0]
	ports := service.NewPorts()
	for key, of := range st.Snapshot.Whole().Services {
		ports.Put(key, service.Of(family, service.Node{Name: st.Options.NodeName}, of.Service, of.EndpointSlices))
	}
	if st.Options.Backend == options.BackendIPTables {
		syncer, err := iptables.NewSyncer(st.Options.Config(family), iptablescmd.New(family, st.Options.IPTablesVariant))
		if err != nil {
			return err
		}
		// Like kube-proxy, try again: iptables-restore of nf_tables 1.8.11 fails when the agent removes the last proxy's chains meanwhile.
		for range 3 {
			if _, err = syncer.Sync(context.Background(), ports.All()); err == nil {
				break
			}
		}
		return err
	}
	ip := map[service.Family]string{service.IPv4: "ip", service.IPv6: "ip6"}[family]
	script := fmt.Sprintf(`table %[1]s kube-proxy
delete table %[1]s kube-proxy
table %[1]s kube-proxy {
	map service-ips { type ipv%[2]d_addr . inet_proto . inet_service : verdict; }
	chain nat-prerouting { type nat hook prerouting priority -100; %[1]s daddr . meta l4proto . th dport vmap @service-ips; }
	chain nat-output { type nat hook output priority -100; %[1]s daddr . meta l4proto . th dport vmap @service-ips; }
`, ip, map[service.Family]int{service.IPv4: 4, service.IPv6: 6}[family])
	var elements string
	for i, port := range ports.All() {
		if !port.LeadsInside() {
			continue
		}
		script += fmt.Sprintf("\tchain service-%d { meta l4proto %s dnat to %s; }\n", i, port.Protocol.Lower(), port.ForCluster[0].Addr)
		for _, at := range append(port.LoadBalancerIPs, port.ClusterIP) {
			elements += fmt.Sprintf("add element %s kube-proxy service-ips { %s . %s . %d : goto service-%d }\n",
				ip, at, port.Protocol.Lower(), port.Port, i)
		}
	}
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(script + "}\n" + elements)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
