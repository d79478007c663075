package redact_test

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/noderules"
	"packetwalk.dev/internal/node/proxy"
	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// TestWriters: the names and the words that a redaction leaves have all those that the writers' own generators make.
func TestWriters(t *testing.T) {
	r := redaction(t, small())
	for _, set := range []string{"cali40masq-ipam-pools", "cali40all-ipam-pools", "cali40network-ip-pools", "cali60network-ip-pools"} {
		if got := r.Set(set); got != set {
			t.Errorf("set %s became %s", set, got)
		}
	}
	for _, counter := range iptablesproxy.CounterNames() {
		if got := r.Counter(counter); got != counter {
			t.Errorf("counter %s became %s", counter, got)
		}
	}
	for _, table := range []string{iptables.NAT, iptables.Filter, iptables.Mangle} {
		if got := r.Table(table); got != table {
			t.Errorf("table %s became %s", table, got)
		}
	}
	comments := append(writtenAlways(t), masqueradeComments(t)...)
	comments = append(comments, proxyComments(t)...)
	for _, c := range comments {
		got, want := hashed.ReplaceAllString(r.Comment(c), "-"), hashed.ReplaceAllString(r.Text(c), "-")
		if got != want {
			t.Errorf("comment %q became %q", c, got)
		}
	}
}

// TestFelixWords: the words of felix's comments stay, so that what is redacted can still be attributed.
func TestFelixWords(t *testing.T) {
	r := redaction(t, small())
	n := 0
	for _, w := range book.Writers {
		if !strings.HasPrefix(w.Name, "Calico's felix") {
			continue
		}
		for _, c := range w.Chains {
			for _, l := range c.Rules {
				words := strings.NewReplacer("{tierEnd}", "End of tier default. ", "{tunnel}", "IPv4 VXLAN", "{who}", "allowed hosts", "{hash}", "0",
					"{action}", "ACCEPT").Replace(l.Comment)
				if words = wordPattern.ReplaceAllString(words, "0"); words == "" || words == "cali:0" {
					continue
				}
				if got := r.Comment("cali:abc; " + words); !strings.HasSuffix(got, "; "+words) || strings.Contains(got, "abc") {
					t.Errorf("comment %q became %q", words, got)
				}
				n++
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d comments", n)
	}
	got, service := r.Comment("cali:abc; Policy shop/knp.default.web ingress"), r.Comment("shop/web")
	namespace, _, _ := strings.Cut(service, "/")
	if !regexp.MustCompile(`^cali:[a-z0-9]{16}; Policy ` + namespace + `/knp\.default\.netpol-[a-z0-9]{8} ingress$`).MatchString(got) {
		t.Errorf("the comment of a policy became %q", got)
	}
}

var wordPattern = regexp.MustCompile(`\{\w+\}`)

// hashed is the end of a chain's name that is of one Service port's.
var hashed = regexp.MustCompile(`-[A-Z2-7]{16}\b`)

var commentArg = regexp.MustCompile(`--comment ("(?:[^"\\]|\\.)*"|\S+)`)

// writtenAlways returns the comments of what every writer writes on every machine, but for those that are a hash of Calico's.
func writtenAlways(t *testing.T) []string {
	var all []string
	for _, w := range book.Writers {
		for _, m := range commentArg.FindAllStringSubmatch(w.Always, -1) {
			c := m[1]
			if unquoted, err := strconv.Unquote(c); err == nil {
				c = unquoted
			}
			if !strings.HasPrefix(c, "cali:") {
				all = append(all, c)
			}
		}
	}
	if len(all) < 10 {
		t.Errorf("only %d comments: %q", len(all), all)
	}
	return all
}

func masqueradeComments(t *testing.T) []string {
	kubenet := noderules.Kubenet(netip.MustParsePrefix("10.0.0.0/8"))
	all := []string{kubenet.Comment()}
	config := &ipmasq.Config{NonMasquerade: []ipmasq.CIDR{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}}
	for _, version := range ipmasq.AgentVersions() {
		rules, err := ipmasq.Rules(version, service.IPv4, config)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range append(rules.Chain, rules.Jump) {
			all = append(all, rule.Comment())
		}
	}
	return all
}

// proxyComments returns the comments of a Service that every cluster has, with all that a Service can have, of all versions.
func proxyComments(t *testing.T) []string {
	endpoints := []service.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.5:443"), Ready: true, Serving: true}}
	port := service.Port{
		Name: service.Name{Namespace: "default", Service: "kubernetes", Port: "https"}, Protocol: service.TCP,
		ClusterIP: netip.MustParseAddr("10.0.0.1"), Port: 443, NodePort: 30443, HealthCheckNodePort: 30444,
		ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")}, AffinitySeconds: 60,
		Endpoints: endpoints, ForCluster: endpoints, ForLocal: endpoints,
	}
	empty := port
	empty.Endpoints, empty.ForCluster, empty.ForLocal = nil, nil, nil
	local := port
	local.ExternalPolicy, local.ForLocal = service.Local, nil
	detector := proxy.Detector{CIDR: netip.MustParsePrefix("10.1.0.0/16")}
	var all []string
	for _, version := range iptablesproxy.RuleSetVersions() {
		for _, p := range []service.Port{port, empty, local} {
			set, err := iptablesproxy.Generate(proxy.Config{Family: service.IPv4, Rules: version, Detector: detector, MasqueradeBit: 14,
				LocalhostNodePorts: true, NFAcct: true}, []service.Port{p})
			if err != nil {
				t.Fatal(err)
			}
			for _, table := range set.Tables {
				for _, chain := range table.Chains {
					for _, rule := range chain.Rules {
						all = append(all, rule.Comment())
					}
				}
			}
			for _, jump := range set.Jumps {
				all = append(all, jump.Rule.Comment())
			}
		}
	}
	return all
}
