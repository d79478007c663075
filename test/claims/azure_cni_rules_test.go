package claims

import (
	"context"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/proxy"
	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/test/world"
)

// kernelTables lets the service proxy write to a namespace of the test's own, by iptables-restore.
type kernelTables struct{ ns *netns.Namespace }

func (k kernelTables) Restore(ctx context.Context, input []byte) error {
	return ruleset.RestoreIPTables(ctx, k.ns, string(input), true)
}

func (k kernelTables) Most(context.Context) int { return 0 }

func (k kernelTables) Save(_ context.Context, table string) (out []byte, err error) {
	err = k.ns.Do(func() error {
		out, err = exec.Command("iptables-save", "-t", table).Output()
		return err
	})
	return out, err
}

// generated brings the objects of a scenario of the service proxy's into the kernel and gives what iptables-save then prints.
func generated(t *testing.T, scenario string) (saved string, archive *txtar.Archive) {
	t.Helper()
	world.NeedRoot(t)
	archive, err := txtar.ParseFile(filepath.Join("../../internal/node/proxy/iptables/testdata", scenario))
	if err != nil {
		t.Fatal(err)
	}
	var services []*corev1.Service
	var endpoints []*discoveryv1.EndpointSlice
	for _, doc := range strings.Split(section(t, archive, "objects.yaml"), "\n---\n") {
		if strings.Contains(doc, "kind: EndpointSlice") {
			endpoints = append(endpoints, decode(t, doc, &discoveryv1.EndpointSlice{}))
		} else {
			services = append(services, decode(t, doc, &corev1.Service{}))
		}
	}
	ns, err := netns.Create(filepath.Join(t.TempDir(), "node"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	})
	settings := decode(t, section(t, archive, "config"), &struct{ Rules, ClusterCIDR, Node string }{})
	config := proxy.Config{Family: service.IPv4, Rules: settings.Rules, MasqueradeBit: 14}
	config.Detector.CIDR = netip.MustParsePrefix(settings.ClusterCIDR)
	syncer, err := iptablesproxy.NewSyncer(config, kernelTables{ns})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := syncer.Sync(t.Context(), service.Build(service.IPv4, service.Node{Name: settings.Node}, services, endpoints)); err != nil {
		t.Fatal(err)
	}
	var dump []byte
	if err := ns.Do(func() (err error) { dump, err = exec.Command("iptables-save").Output(); return err }); err != nil {
		t.Fatal(err)
	}
	return string(dump), archive
}

func decode[T any](t *testing.T, doc string, object T) T {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
		t.Fatal(err)
	}
	return object
}

func section(t *testing.T, a *txtar.Archive, name string) string {
	t.Helper()
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	t.Fatalf("no section %s", name)
	return ""
}

var inOrder = regexp.MustCompile(`^KUBE-(SVC|SEP|FW|XLB)-`)

// byChain returns the rules that contain a text, a chain at a time: in order within SVC, SEP, FW and XLB chains, sorted elsewhere.
func byChain(listing, what string) map[string][]string {
	chains := map[string][]string{}
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "-A ") && strings.Contains(line, what) {
			chain := strings.Fields(line)[1]
			chains[chain] = append(chains[chain], line)
		}
	}
	for name, rules := range chains {
		if !inOrder.MatchString(name) {
			slices.Sort(rules)
		}
	}
	return chains
}

// sameAsSeed compares the kernel's listing with the article's.
func sameAsSeed(t *testing.T, scenario, what string, lines int) {
	t.Helper()
	saved, archive := generated(t, scenario)
	want := byChain(section(t, archive, "seed."+what), what)
	count := 0
	for _, rules := range want {
		count += len(rules)
	}
	if count != lines {
		t.Fatalf("the scenario holds %d of the seed's lines, want %d", count, lines)
	}
	if diff := cmp.Diff(want, byChain(saved, what)); diff != "" {
		t.Errorf("the kernel's rules differ from the article's (-article +kernel):\n%s", diff)
	}
}

func TestA5(t *testing.T) { sameAsSeed(t, "a5-azure-cni-1.11.txtar", "whereami", 14) }

func TestA12(t *testing.T) { sameAsSeed(t, "a12-local-1.11.txtar", "default/whereami", 15) }

func TestA6(t *testing.T) {
	t.Parallel()
	p := part1World(t, "whereami.yaml")
	saved := p.SSH(t, part1Node, "iptables-save", "-t", "nat")
	tables, err := iptables.Parse([]byte(saved))
	if err != nil {
		t.Fatal(err)
	}
	mark := tables[0].Chain("KUBE-MARK-MASQ")
	if mark == nil || len(mark.Rules) != 1 || mark.Rules[0].Spec() != "-j MARK --set-xmark 0x4000/0x4000" {
		t.Errorf("KUBE-MARK-MASQ is %+v", mark)
	}
	expect(t, saved,
		`^-A POSTROUTING -s 172\.17\.0\.0/16 ! -o docker0 -j MASQUERADE$`,
		`^-A POSTROUTING ! -d 10\.0\.0\.0/8 -m iprange ! --dst-range 168\.63\.129\.16-168\.63\.129\.16 -m addrtype ! --dst-type LOCAL -j MASQUERADE$`,
		`^-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -m mark --mark 0x4000/0x4000 -j MASQUERADE$`)
	expect(t, p.SSH(t, part1Node, "iptables", "-t", "nat", "-L", "KUBE-MARK-MASQ"), `^MARK .* MARK or 0x4000$`)
}
