package explain

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/node/cni/ebrules"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/noderules"
	"packetwalk.dev/internal/node/proxy"
	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/testing/goldentest"
)

const root = "../../../"

// writtenRules are rules that one writer made: of a golden file, or of random objects.
type writtenRules struct {
	writer, golden string // golden is "" for random ones
	tables         map[string]map[string]*netfilter.Chain
}

// TestEveryRuleIsSigned: each rule that a generator makes has a reason of its own writer, and each reason a rule.
func TestEveryRuleIsSigned(t *testing.T) {
	none := ownersOf(snapshot.Objects{})
	book := none.signatures()
	used := map[*attribution.Line]bool{}
	for _, w := range append(goldens(t), generated(t)...) {
		for table, chains := range w.tables {
			where := strings.TrimSpace(w.golden + " table " + table)
			visitAll(none, chains, func(v *netfilter.Visit, r attribution.Reason) {
				switch {
				case r.Line == nil && v.Rule == nil: // not every policy needs a reason
				case r.Line == nil:
					t.Errorf("%s: no writer is known for -A %s %s → %v", where, v.Chain.Name, v.Rule.Text, v.Verdict.Chain)
				case r.Writer != w.writer:
					t.Errorf("%s: %s says that it wrote -A %s %s, which %s did: %s", where, r.Writer, v.Chain.Name, v.Rule.Text, w.writer, r.For)
				case strings.ContainsAny(r.For, "{}\x00"):
					t.Errorf("%s: reason %q of -A %s %s is not filled in", where, r.For, v.Chain.Name, v.Rule.Text)
				}
				used[r.Line] = true
			})
			for _, c := range chains {
				if book.Chain(family(c), c.Table.Name, c.Name) == nil {
					t.Errorf("%s: no writer is known for chain %s", where, c.Name)
				}
			}
		}
	}
	for _, w := range book.Writers {
		for i := range w.Chains {
			for j := range w.Chains[i].Rules {
				if l := &w.Chains[i].Rules[j]; !used[l] {
					t.Errorf("%s, chain %s %s: no rule is there for %q (%+v)", w.Name, w.Chains[i].Table, w.Chains[i].Name, l.For, *l)
				}
			}
		}
	}
}

// visitAll goes through a table's chains as packets could, each chain once, from those that others lead to last.
func visitAll(o *Owners, chains map[string]*netfilter.Chain, found func(*netfilter.Visit, attribution.Reason)) {
	why := newReasoner(o)
	var open []*netfilter.Chain
	seen := map[*netfilter.Chain]bool{}
	for _, c := range chains {
		if c.Base != nil {
			open = append(open, c)
		}
	}
	for len(open) > 0 || len(seen) < len(chains) {
		if len(open) == 0 {
			for _, c := range chains {
				if !seen[c] && !slices.Contains(open, c) {
					open = append(open, c) // no other chain leads there
				}
			}
		}
		c := open[0]
		if open = open[1:]; seen[c] {
			continue
		}
		seen[c] = true
		visit := func(r *netfilter.Rule, verdict netfilter.Verdict) {
			v := &netfilter.Visit{Chain: c, Rule: r, Verdict: verdict}
			found(v, why.reason("", v, &packet.Packet{}))
			if verdict.Chain != nil {
				open = append(open, verdict.Chain)
			}
		}
		for i := range c.Rules {
			to := targets(c.Rules[i].Text, chains)
			element := &netfilter.Element{Comment: "default/web:http"}
			for _, chain := range to {
				verdict := jump(chain)
				if strings.Contains(c.Rules[i].Text, "vmap") {
					verdict.Element = element
				}
				visit(&c.Rules[i], verdict)
			}
			if strings.Contains(c.Rules[i].Text, "vmap") && strings.Contains(c.Rules[i].Text, ": drop") {
				visit(&c.Rules[i], netfilter.Verdict{Kind: netfilter.Drop, Element: element})
			}
			if len(to) == 0 || strings.Contains(c.Rules[i].Text, "vmap") {
				visit(&c.Rules[i], netfilter.Verdict{})
			}
		}
		if c.Base != nil {
			visit(nil, netfilter.Verdict{Kind: c.Policy})
		}
	}
}

var leadsTo = regexp.MustCompile(`(?:-j|-g|jump|goto) ([^\s,;}]+)`)

// targets returns the chains that a rule may lead to. The elements of the rule's map stand behind it in braces (see scripts).
func targets(rule string, chains map[string]*netfilter.Chain) []*netfilter.Chain {
	var all []*netfilter.Chain
	for _, m := range leadsTo.FindAllStringSubmatch(rule, -1) {
		if c := chains[m[1]]; c != nil && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// goldens returns the rules in the writers' golden files.
func goldens(t *testing.T) []writtenRules {
	var all []writtenRules
	for _, from := range []struct{ writer, files string }{
		{"service proxy", "internal/node/proxy/iptables/testdata/*.txtar"},
		{"service proxy, nftables", "internal/node/proxy/nftables/testdata/listed/*.txt"},
		{"ip-masq-agent", "internal/node/ipmasq/testdata/*.txtar"},
		{"node", "internal/node/noderules/testdata/*.txtar"},
		{"CNI plugin", "internal/node/cni/ebrules/testdata/*.txtar"},
		{"fabric", "internal/azure/vnet/testdata/*.txtar"},
		{"firewall", "internal/azure/firewall/testdata/*.txt"},
		{"kube-proxy, nftables mode", "internal/answer/explain/foreign/testdata/kube-proxy-nftables-*.txt"},
		{"Calico's felix", "internal/answer/explain/foreign/testdata/felix*.txt"},
		{"Calico's felix, nftables mode", "internal/answer/explain/foreign/testdata/nft-felix-3.31*.txt"},
		{"kube-router", "internal/answer/explain/foreign/testdata/kube-router.txt"},
		{"Weave Net", "internal/answer/explain/foreign/testdata/weave.txt"},
		{"Azure NPM", "internal/answer/explain/foreign/testdata/npm*.txt"},
		{"Docker", "internal/answer/explain/foreign/testdata/docker-*.txt"},
		{"CNI portmap", "internal/answer/explain/foreign/testdata/portmap.txt"},
		{"Istio", "internal/answer/explain/foreign/testdata/istio-*.txt"},
		{"NodeLocal DNSCache", "internal/answer/explain/foreign/testdata/nodelocaldns.txt"},
		{"AKS LocalDNS", "internal/answer/explain/foreign/testdata/aks-localdns.txt"},
		{"node", "internal/answer/explain/foreign/testdata/aks-node.txt"},
		{"Azure guest agent", "internal/answer/explain/foreign/testdata/aks-guest-agent.txt"},
		{"unknown writer", "internal/answer/explain/foreign/testdata/aks-unknown-writer.txt"},
		{"Azure CNI", "internal/answer/explain/foreign/testdata/azure-swift.txt"},
		{"Azure CNS", "internal/answer/explain/foreign/testdata/azure-swift-cns.txt"},
		{"AWS VPC CNI", "internal/answer/explain/foreign/testdata/aws-cni-*.txt"},
		{"Linkerd", "internal/answer/explain/foreign/testdata/linkerd.txt"},
		{"flannel", "internal/answer/explain/foreign/testdata/flannel*.txt"},
		{"Cilium", "internal/answer/explain/foreign/testdata/cilium.txt"},
	} {
		paths, err := filepath.Glob(root + from.files)
		if err != nil || len(paths) == 0 {
			t.Fatalf("no files %s: %v", from.files, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, rules, _ := strings.Cut(string(text), "\n-- rules --\n")
			if rules == "" {
				rules = string(text)
			}
			f := netfilter.IPv4
			if from.writer == "CNI plugin" {
				f = netfilter.Bridge
			}
			tables := saved(f, rules)
			for name, chains := range scripts("\n" + string(text)) {
				tables[name] = chains
			}
			all = append(all, writtenRules{from.writer, strings.TrimPrefix(path, root), tables})
		}
	}
	return all
}

// saved parses the tables of an iptables-save, or of iptables-restore's input. A text without the name of a table stands for table nat.
func saved(f netfilter.Family, text string) map[string]map[string]*netfilter.Chain {
	lines := map[string][]string{}
	table := "nat"
	for line := range strings.Lines(text) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			lines[table] = append(lines[table], "-A "+strings.Fields(line[1:])[0])
		case strings.HasPrefix(line, "-A "), strings.HasPrefix(line, "-I "):
			lines[table] = append(lines[table], "-A"+line[2:])
		}
	}
	tables := map[string]map[string]*netfilter.Chain{}
	for name, rules := range lines {
		tables[name] = chains(f, name, strings.Join(rules, "\n"))
	}
	return tables
}

var (
	scriptTable = regexp.MustCompile(`(?s)\ntable ip6? (\S+) \{\n(.*?)\n\}\n`)
	scriptBlock = regexp.MustCompile(`(?s)\n\t(set|map|chain) (\S+) \{\n(?:(.*?)\n)??\t\}`)
	scriptNote  = regexp.MustCompile(`comment ("(?:\\.|[^"\\])*")$`)
)

// scripts parses the tables of an nft script. A rule that looks a verdict up in a map has the map's elements behind it, which show where it
// may lead.
func scripts(text string) map[string]map[string]*netfilter.Chain {
	tables := map[string]map[string]*netfilter.Chain{}
	for _, m := range scriptTable.FindAllStringSubmatch(text, -1) {
		table := &netfilter.Table{Name: m[1], Family: netfilter.IPv4, Dialect: netfilter.NFTables}
		chains, maps := map[string]*netfilter.Chain{}, map[string]string{}
		blocks := scriptBlock.FindAllStringSubmatch("\n"+m[2], -1)
		for _, b := range blocks {
			if b[1] == "map" {
				maps[b[2]] = b[3]
			}
		}
		for _, b := range blocks {
			if b[1] != "chain" {
				continue
			}
			c := &netfilter.Chain{Table: table, Name: b[2], Policy: netfilter.Return}
			for line := range strings.Lines(b[3]) {
				line = strings.TrimSpace(line)
				if strings.HasPrefix(line, "type ") {
					c.Base, c.Policy = &netfilter.Base{}, netfilter.Accept
					if strings.Contains(line, "policy drop") {
						c.Policy = netfilter.Drop
					}
					continue
				}
				if strings.HasPrefix(line, "comment ") {
					continue
				}
				r := netfilter.Rule{Number: len(c.Rules) + 1, Text: line}
				if m := scriptNote.FindStringSubmatch(line); m != nil {
					r.Comment = strings.Trim(m[1], `"`)
				}
				if _, name, ok := strings.Cut(line, "vmap @"); ok {
					r.Text += " # " + maps[strings.Fields(name)[0]]
				}
				c.Rules = append(c.Rules, r)
			}
			chains[c.Name] = c
		}
		tables[m[1]] = chains
	}
	return tables
}

// generated returns rules of random objects, the same in every run.
func generated(t *testing.T) []writtenRules {
	random := rand.New(rand.NewPCG(1, 2))
	var all []writtenRules
	add := func(writer string, f netfilter.Family, lines ...string) {
		all = append(all, writtenRules{writer: writer, tables: saved(f, strings.Join(lines, "\n"))})
	}
	for range 100 {
		add("service proxy", netfilter.IPv4, randomServices(t, random))
	}
	for range 60 {
		add("ip-masq-agent", netfilter.IPv4, randomMasq(t, random)...)
		var ranges []netip.Prefix
		for range random.IntN(4) {
			ranges = append(ranges, pick(random, randomPrefix(random), netip.MustParsePrefix("168.63.129.16/32")))
		}
		docker := netip.MustParsePrefix("172.17.0.0/16")
		rules := noderules.Masquerade(ranges, docker)
		rules = append(rules, noderules.Kubenet(randomPrefix(random)), noderules.Docker(docker))
		var lines []string
		for i := range rules {
			lines = append(lines, string(iptables.AppendRule(nil, "POSTROUTING", &rules[i])))
		}
		add("node", netfilter.IPv4, lines...)
	}
	mac := net.HardwareAddr{0, 13, 58, 1, 2, 3}
	pod := netip.MustParseAddr("10.240.0.7")
	eb := slices.Concat(ebrules.Node("eth0", mac, []netip.Addr{pod}), ebrules.Pod("eth0", pod, mac),
		ebrules.Deduplicate(ebrules.Dedup, mac, "veth", pod, netip.MustParsePrefix("10.240.0.0/24")))
	var lines []string
	for _, r := range eb {
		lines = append(lines, "*"+r.Table, "-A "+r.Text)
	}
	add("CNI plugin", netfilter.Bridge, lines...)
	add("fabric", netfilter.IPv4, vnet.ContainerHostRules)
	return all
}

func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

func randomAddr(random *rand.Rand) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(random.IntN(256)), byte(random.IntN(256)), byte(1 + random.IntN(254))})
}

func randomPrefix(random *rand.Rand) netip.Prefix {
	return netip.PrefixFrom(randomAddr(random), 8+random.IntN(25)).Masked()
}

func randomServices(t *testing.T, random *rand.Rand) string {
	chance := func() bool { return random.IntN(2) == 0 }
	c := proxy.Config{
		Family: service.IPv4, Rules: pick(random, iptablesproxy.RuleSetVersions()...), MasqueradeBit: 14, MasqueradeAll: chance(),
		LocalhostNodePorts: chance(),
		TCPLiberal:         chance(), NFAcct: chance(), NodeIP: randomAddr(random),
		Detector: pick(random, proxy.Detector{}, proxy.Detector{CIDR: randomPrefix(random)},
			proxy.Detector{Interface: "azv+"}),
	}
	if chance() {
		c.NodePortIPs = []netip.Addr{randomAddr(random), randomAddr(random)}
	}
	var ports []service.Port
	for i := range random.IntN(6) {
		p := service.Port{
			Name: service.Name{Namespace: pick(random, "default", "kube-system"), Service: fmt.Sprint("web-", i), Port: pick(random, "",
				"http")},
			Protocol: pick(random, service.TCP, service.UDP), ClusterIP: randomAddr(random), Port: 80,
			ExternalPolicy: pick(random, service.Cluster, service.Local), InternalPolicy: pick(random, service.Cluster, service.Local),
			AffinitySeconds: pick(random, 0, 10800), NodePort: pick[uint16](random, 0, 30080),
		}
		if chance() {
			p.LoadBalancerIPs = []netip.Addr{randomAddr(random)}
			p.HealthCheckNodePort = pick[uint16](random, 0, 30090)
			p.SourceRanges = pick(random, nil, []netip.Prefix{randomPrefix(random)}, []netip.Prefix{netip.PrefixFrom(c.NodeIP, 32)})
		}
		if chance() {
			p.ExternalIPs = []netip.Addr{randomAddr(random)}
		}
		for range random.IntN(4) {
			e := service.Endpoint{Addr: netip.AddrPortFrom(randomAddr(random), 8080), Local: chance(), Ready: true, Serving: true}
			p.Endpoints, p.ForCluster = append(p.Endpoints, e), append(p.ForCluster, e)
			if e.Local {
				p.ForLocal = append(p.ForLocal, e)
			}
		}
		ports = append(ports, p)
	}
	set, err := iptablesproxy.Generate(c, ports)
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for i := range set.Tables {
		text = fmt.Appendf(text, "*%s\n", set.Tables[i].Name)
		for j := range set.Tables[i].Chains {
			text = iptables.AppendRules(text, &set.Tables[i].Chains[j])
		}
	}
	for i := range set.Jumps {
		text = fmt.Appendf(text, "*%s\n", set.Jumps[i].Table)
		text = iptables.AppendRule(text, set.Jumps[i].Chain, &set.Jumps[i].Rule)
		text = append(text, '\n')
	}
	return string(text)
}

func randomMasq(t *testing.T, random *rand.Rand) []string {
	var ranges []string
	for range random.IntN(4) {
		ranges = append(ranges, randomPrefix(random).String())
	}
	text := fmt.Sprintf("nonMasqueradeCIDRs: [%s]\nmasqLinkLocal: %v", strings.Join(ranges, ", "), random.IntN(2) == 0)
	name := pick(random, ipmasq.AgentVersions()...)
	form, err := ipmasq.FormOf(name)
	if err != nil {
		t.Fatal(err)
	}
	file := ipmasq.File{ConfigMap: "kube-system/config", Key: map[bool]string{true: ipmasq.FileV1,
		false: "ip-masq-agent"}[form == ipmasq.FormV1], Text: text}
	config, problems := ipmasq.Parse(ipmasq.Options{Form: form}, []ipmasq.File{file})
	if config == nil {
		t.Fatal(problems)
	}
	set, err := ipmasq.Rules(name, service.IPv4, config)
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{string(iptables.AppendRule(nil, "POSTROUTING", &set.Jump.Rule))}
	for i := range set.Chain {
		lines = append(lines, string(iptables.AppendRule(nil, ipmasq.Chain, &set.Chain[i].Rule)))
	}
	return lines
}

// TestRulesPage holds docs/dev/rules.md to the writers' tables; -update writes it.
func TestRulesPage(t *testing.T) {
	var page strings.Builder
	page.WriteString(`# Who wrote this rule?

This page lists every chain and rule that a walk explains, its writer and its purpose. In patterns and reasons,

- {word} stands for one word that differs;
- ` + "`*`" + ` stands for any text;
- [A|B] stands for the first of A and B that is known.

The reasons are in ` + "`Signed`" + ` beside each generator. Rules of the fabric and of container hosts also have their reason as
a comment in the kernel.

` + "`go test ./internal/answer/explain -run TestRulesPage -update`" + ` writes this page from the writers' own tables. A test
compares it with the rules that they write.

| chain | rule | what it is there for | writer (file) | golden file |
|---|---|---|---|---|
`)
	from := goldens(t)
	for _, w := range ownersOf(snapshot.Objects{}).signatures().Writers {
		for _, c := range w.Chains {
			where := "`" + strings.TrimSpace(map[attribution.Family]string{attribution.Bridge: "bridge "}[c.Family]+c.Table+" "+c.Name) + "`"
			writer := fmt.Sprintf("%s ([%s](../../%s))", w.Name, filepath.Base(w.File), w.File)
			row(&page, where, "", c.For, writer, goldenOf(from, w, c))
			for _, l := range c.Rules {
				row(&page, where, pattern(l), l.For, "", "")
				if l.Not != "" {
					row(&page, where, pattern(l)+", where it does not apply", l.Not, "", "")
				}
			}
		}
	}
	goldentest.File(t, root+"docs/dev/rules.md", page.String())
}

func row(page *strings.Builder, cells ...string) {
	for _, c := range cells {
		fmt.Fprintf(page, "| %s ", strings.NewReplacer("|", `\|`, "\n", " ").Replace(c))
	}
	page.WriteString("|\n")
}

// pattern returns a line's pattern in words.
func pattern(l attribution.Line) string {
	var parts []string
	if l.To != "" {
		parts = append(parts, "to `"+l.To+"`")
	}
	if l.Comment != "" {
		parts = append(parts, "comment `"+l.Comment+"`")
	}
	if l.Text != "" {
		parts = append(parts, "with `"+l.Text+"`")
	}
	if len(parts) == 0 {
		return "any"
	}
	return strings.Join(parts, ", ")
}

// goldenOf returns the first golden file of the writer that has the chain.
func goldenOf(from []writtenRules, w attribution.Writer, c attribution.Chain) string {
	alone := attribution.Book{Writers: []attribution.Writer{{Name: w.Name, Words: w.Words, Chains: []attribution.Chain{c}}}}
	for _, f := range from {
		for _, chains := range f.tables {
			for _, chain := range chains {
				if f.writer == w.Name && alone.Chain(family(chain), chain.Table.Name, chain.Name) != nil {
					return fmt.Sprintf("[%s](../../%s)", filepath.Base(f.golden), f.golden)
				}
			}
		}
	}
	return "–"
}
