package ippool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/ipset"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/testing/goldentest"
)

// objects are what the API would have.
type objects struct {
	pools    []Pool
	configs  []Configuration
	problems []string
}

func read(t *testing.T, text []byte) objects {
	t.Helper()
	var o objects
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     json.RawMessage
		}
		if err := yaml.Unmarshal(doc, &object); err != nil {
			t.Fatal(err)
		}
		if object.Kind == "FelixConfiguration" {
			o.configs = append(o.configs, Configuration{object.Metadata.Name, object.Spec})
			continue
		}
		p, err := ParsePool(object.Metadata.Name, object.Spec)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				o.problems = append(o.problems, p.Name+": "+strings.TrimSpace(line))
			}
		}
		o.pools = append(o.pools, p)
	}
	return o
}

// show is everything that follows from the objects for node0.
func (o objects) show() string {
	var b strings.Builder
	section := func(name string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&b, "-- %s --\n%s\n", name, strings.Join(lines, "\n"))
		}
	}
	felix, failed := ParseFelix("node0", o.configs)
	problems := slices.Clone(o.problems)
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		for line := range strings.Lines(failed[name].Error()) {
			problems = append(problems, name+": "+strings.TrimSpace(line))
		}
	}
	for _, pair := range Overlaps(o.pools) {
		problems = append(problems, pair.Pool+": overlaps "+pair.With)
	}
	slices.Sort(problems)
	section("problems", problems)
	for _, f := range []service.Family{service.IPv4, service.IPv6} {
		p := Build(f, felix, o.pools)
		if f == service.IPv6 && len(p.All.Members) == 0 {
			continue
		}
		section(fmt.Sprintf("ipset %s", f), strings.Split(strings.TrimSpace(string(ipset.Print([]ipset.Set{p.All.IPSet(), p.Masq.IPSet()}))),
			"\n"))
		section(fmt.Sprintf("nat %s", f), p.lines())
		section(fmt.Sprintf("why %s", f), p.why())
	}
	return b.String()
}

func (p Plan) lines() []string {
	where := map[bool]string{false: "head", true: "end"}[p.Append]
	var lines []string
	for _, j := range p.Jumps {
		lines = append(lines, where+" "+string(iptables.AppendRule(nil, j.Chain, &j.Rule)))
	}
	for _, c := range p.Chains {
		lines = append(lines, ":"+c.Name)
		for _, r := range c.Rules {
			lines = append(lines, string(iptables.AppendRule(nil, c.Name, &r.Rule)))
		}
	}
	return lines
}

func (p Plan) why() []string {
	var lines []string
	for _, s := range []Set{p.All, p.Masq} {
		for _, m := range s.Members {
			lines = append(lines, s.Name+" "+m.Prefix.String()+": "+strings.Join(m.Pools, ", "))
		}
	}
	for _, c := range p.Chains {
		for _, r := range c.Rules {
			if len(r.Pools) > 0 {
				lines = append(lines, c.Name+": "+strings.Join(r.Pools, ", "))
			}
		}
	}
	return lines
}

// TestGolden: objects in, everything that follows from them for node0 out.
func TestGolden(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		return txtar.Parse([]byte(read(t, in[0].Data).show())).Files
	})
}

// TestOrder: the same objects in another order, some of them twice, make the same plan.
func TestOrder(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/mixed.txtar")
	if err != nil {
		t.Fatal(err)
	}
	o := read(t, archive.Files[0].Data)
	want := o.show()
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		o.pools, o.configs = slices.Clone(o.pools), slices.Clone(o.configs)
		r.Shuffle(len(o.pools), func(i, j int) { o.pools[i], o.pools[j] = o.pools[j], o.pools[i] })
		r.Shuffle(len(o.configs), func(i, j int) { o.configs[i], o.configs[j] = o.configs[j], o.configs[i] })
		if got := o.show(); got != want {
			t.Fatalf("order changed the plan:\n%s\nwant\n%s", got, want)
		}
	}
	again := o
	again.pools = append(slices.Clone(o.pools), o.pools...)
	felix, _ := ParseFelix("node0", o.configs)
	a, b := Build(service.IPv4, felix, again.pools), Build(service.IPv4, felix, o.pools)
	if strings.Join(a.lines(), "\n") != strings.Join(b.lines(), "\n") ||
		string(ipset.Print([]ipset.Set{a.All.IPSet()})) != string(ipset.Print([]ipset.Set{b.All.IPSet()})) {
		t.Error("pools that come twice make another plan")
	}
}

// TestHashes holds the hashes to those that felix wrote on other people's machines (the articles, and captures that people have posted).
func TestHashes(t *testing.T) {
	p := Build(service.IPv4, Felix{}, []Pool{{Name: "p", CIDR: prefix("10.240.0.0/16"), NATOutgoing: true}})
	var got []string
	for _, line := range p.lines() {
		if _, rest, ok := strings.Cut(line, `"cali:`); ok {
			got = append(got, rest[:16])
		}
	}
	want := []string{"6gwbT8clXdHdC1b1", "tVnHkvAo15HuiPy0", "O3lYWMrLQYEMJtB5", "r6XmIziWUJsdOK6Z", "GBTAv2p5CwevEyJm", "Z-c7XtVd2Bq7s_hA",
		"nYKhEzDlr11Jccal", "flqWnvo8yq4ULQLa"}
	if !slices.Equal(got, want) {
		t.Errorf("hashes %v, want %v", got, want)
	}
}
