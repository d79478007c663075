package ipmasq

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

var update = flag.Bool("update", false, "rewrite the golden rules and problems under testdata")

// scenario is a txtar under testdata: settings, files named NAMESPACE/CONFIGMAP/KEY, and what comes of them: rules (none without a
// configuration), each with its origins, and problems. Where a seed shows a listing, seed has it: the rules of IPv4, to the letter.
type scenario struct {
	path     string
	archive  *txtar.Archive
	settings struct {
		Rules string
		IPv6  bool
	}
	files []File
}

func load(t testing.TB, path string) *scenario {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &scenario{path: path, archive: archive}
	for _, f := range archive.Files {
		switch i := strings.LastIndexByte(f.Name, '/'); {
		case f.Name == "settings":
			if err := yaml.UnmarshalStrict(f.Data, &s.settings); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		case i >= 0:
			s.files = append(s.files, File{ConfigMap: f.Name[:i], Key: f.Name[i+1:], Text: string(f.Data)})
		}
	}
	return s
}

func scenarios(t testing.TB) []*scenario {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	var all []*scenario
	for _, path := range paths {
		all = append(all, load(t, path))
	}
	return all
}

func (s *scenario) options(t testing.TB) Options {
	t.Helper()
	form, err := FormOf(s.settings.Rules)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Form: form, IPv6: s.settings.IPv6}
}

// outcome returns the rules and problems of the files as text.
func (s *scenario) outcome(t testing.TB, files []File) (rules, problems string) {
	t.Helper()
	config, found := Parse(s.options(t), files)
	var b strings.Builder
	for _, p := range found {
		fmt.Fprintf(&b, "%s: ConfigMap %s, %s\n", p.Severity, p.ConfigMap, p)
	}
	if config == nil {
		return "", b.String()
	}
	rules = s.listing(t, service.IPv4, config, true)
	if s.settings.IPv6 {
		rules += "# IPv6\n" + s.listing(t, service.IPv6, config, true)
	}
	return rules, b.String()
}

func (s *scenario) listing(t testing.TB, f service.Family, c *Config, origins bool) string {
	t.Helper()
	set, err := Rules(s.settings.Rules, f, c)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	write := func(chain string, r Rule) {
		for _, o := range r.From {
			if origins {
				fmt.Fprintf(&b, "# %s\n", o)
			}
		}
		fmt.Fprintf(&b, "%s\n", iptables.AppendRule(nil, chain, &r.Rule))
	}
	write(postrouting, set.Jump)
	for _, r := range set.Chain {
		write(Chain, r)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	for _, s := range scenarios(t) {
		t.Run(strings.TrimSuffix(filepath.Base(s.path), ".txtar"), func(t *testing.T) {
			rules, problems := s.outcome(t, s.files)
			got := map[string]string{"rules": rules, "problems": problems}
			for i := range s.archive.Files {
				f := &s.archive.Files[i]
				text, compared := got[f.Name]
				if f.Name == "seed" {
					config, _ := Parse(s.options(t), s.files)
					text, compared = s.listing(t, service.IPv4, config, false), true
				}
				if !compared {
					continue
				}
				if *update && f.Name != "seed" {
					f.Data = []byte(text)
				}
				if diff := cmp.Diff(string(f.Data), text); diff != "" {
					t.Errorf("%s (-file +now):\n%s", f.Name, diff)
				}
			}
			if *update {
				if err := os.WriteFile(s.path, txtar.Format(s.archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// The files come out of a map: their order says nothing.
func TestOrderOfFilesIsIndifferent(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, s := range scenarios(t) {
		rules, problems := s.outcome(t, s.files)
		for range 20 {
			files := slices.Clone(s.files)
			random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
			r, p := s.outcome(t, files)
			if r != rules || p != problems {
				t.Errorf("%s: another order, another outcome:\n%s%s\n%s%s", s.path, rules, problems, r, p)
			}
		}
	}
}

func TestTextReadsBackAsWhatItSays(t *testing.T) {
	for _, s := range scenarios(t) {
		if c, _ := Parse(s.options(t), s.files); c != nil {
			rereads(t, s.options(t), c)
		}
	}
	if got, want := defaults().Text(FormV1),
		"nonMasqueradeCIDRs:\n  - 10.0.0.0/8\n  - 172.16.0.0/12\n  - 192.168.0.0/16\nmasqLinkLocal: false\nresyncInterval: 60s"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// rereads checks that a configuration and its text say the same.
func rereads(t testing.TB, o Options, c *Config) {
	t.Helper()
	text := c.Text(o.Form)
	again, problems := Parse(o, []File{{"ns/name", FileV1, text}})
	if again == nil {
		t.Fatalf("%v of\n%s", problems, text)
	}
	if got := again.Text(o.Form); got != text {
		t.Errorf("%s\nreads back as\n%s", text, got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range scenarios(f) {
		for _, file := range s.files {
			f.Add(file.Text, s.settings.Rules == "current", s.settings.IPv6)
		}
	}
	f.Fuzz(func(t *testing.T, text string, v2, ipv6 bool) {
		version, o := "1.19", Options{Form: FormV1, IPv6: ipv6}
		if v2 {
			version, o.Form = "current", FormV2
		}
		file := File{"ns/name", FileV1, text}
		c, problems := Parse(o, []File{file})
		if broken := slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity == Error }); broken != (c == nil) {
			t.Fatalf("configuration %v with problems %v", c, problems)
		}
		for _, p := range problems {
			if p.Message == "" || p.Remedy == "" || p.ConfigMap != file.ConfigMap || len(p.String()) > 1000 {
				t.Errorf("problem %+v", p)
			}
		}
		if c == nil {
			return
		}
		rereads(t, o, c)
		for _, family := range []service.Family{service.IPv4, service.IPv6} {
			set, err := Rules(version, family, c)
			if err != nil {
				t.Fatal(err)
			}
			settles(t, set)
		}
	})
}

// settles checks that after its edit a table needs no other, and that the rules are what iptables' syntax can say.
func settles(t testing.TB, set *RuleSet) {
	t.Helper()
	nat := iptables.Table{Name: iptables.NAT, Chains: []iptables.Chain{{Name: postrouting, Policy: "ACCEPT"}}}
	edit := set.Edit(&nat, nil)
	var text []byte
	text = append(text, "*nat\n:POSTROUTING ACCEPT [0:0]\n:IP-MASQ-AGENT - [0:0]\n"...)
	for _, c := range edit.Replace {
		text = iptables.AppendRules(text, &c)
	}
	for _, p := range edit.Append {
		text = append(append(text, iptables.AppendRule(nil, p.Chain, &p.Rule)...), '\n')
	}
	text = append(text, "COMMIT\n"...)
	tables, err := iptables.Parse(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if again := set.Edit(&tables[0], nil); !again.IsZero() {
		t.Errorf("not settled: %s", iptables.AppendRestore(nil, []iptables.Edit{again}))
	}
}
