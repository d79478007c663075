package ipmasq

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

const (
	goodJump = `-A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom IP-MASQ-AGENT chain" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT`
	docker   = `-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE`
	kube     = `-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`
	link     = `-A IP-MASQ-AGENT -d 169.254.0.0/16 -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN`
	ten      = `-A IP-MASQ-AGENT -d 10.0.0.0/8 -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN`
	last     = `-A IP-MASQ-AGENT -m comment --comment "ip-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)" -j MASQUERADE`
	head     = "*nat\n:POSTROUTING ACCEPT [7:420]\n:KUBE-POSTROUTING - [0:0]\n:IP-MASQ-AGENT - [0:0]\n"
	quoted   = `-A POSTROUTING -m comment --comment "\"ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom IP-MASQ-AGENT chain\"" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT`
)

func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

func TestEditDoesWhatIsMissingAndNoMore(t *testing.T) {
	c, problems := Parse(Options{Form: FormV1}, []File{{"ns/c", FileV1, "nonMasqueradeCIDRs: [10.0.0.0/8]"}})
	if c == nil {
		t.Fatal(problems)
	}
	set, err := Rules("1.19", service.IPv4, c)
	if err != nil {
		t.Fatal(err)
	}
	ahead, ok := iptables.ParseSpec(strings.TrimPrefix(docker, "-A POSTROUTING "))
	if !ok {
		t.Fatal(docker)
	}
	chain := lines(link, ten, last)
	remove := func(rule string) string { return strings.Replace(rule, "-A ", "-D ", 1) }
	write := ":IP-MASQ-AGENT - [0:0]\n" + chain
	for name, test := range map[string]struct{ dump, want string }{
		"there":                   {head + lines(kube, docker, goodJump) + chain, ""},
		"there, counted":          {head + lines("[3:180] "+kube, "[0:0] "+docker, "[5:300] "+goodJump) + "[1:60] " + chain, ""},
		"there, another's after":  {head + lines(kube, docker, goodJump, `-A POSTROUTING -j OTHER`) + chain, ""},
		"nothing":                 {"*nat\n:POSTROUTING ACCEPT [0:0]\n", write + lines(goodJump)},
		"chain emptied":           {head + lines(kube, docker, goodJump), write},
		"a rule too many":         {head + lines(kube, docker, goodJump) + chain + lines(`-A IP-MASQ-AGENT -j ACCEPT`), write},
		"another order":           {head + lines(kube, docker, goodJump, ten, link, last), write},
		"no jump":                 {head + lines(kube, docker) + chain, lines(goodJump)},
		"jump twice":              {head + lines(kube, docker, goodJump, goodJump) + chain, lines(remove(goodJump), remove(goodJump), goodJump)},
		"jump ahead of docker0":   {head + lines(kube, goodJump, docker) + chain, lines(remove(goodJump), goodJump)},
		"jump of another version": {head + lines(kube, docker, "[1:2] "+quoted) + chain, lines(remove(quoted), goodJump)},
	} {
		tables, err := iptables.Parse([]byte(test.dump + "COMMIT\n"))
		if err != nil {
			t.Fatal(err)
		}
		edit := set.Edit(&tables[0], []iptables.Rule{ahead})
		want := test.want
		if want != "" {
			want = "*nat\n" + want + "COMMIT\n"
		}
		if diff := cmp.Diff(want, string(iptables.AppendRestore(nil, []iptables.Edit{edit}))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if edit := set.Edit(nil, nil); edit.Rules() != 4 {
		t.Errorf("no table: %+v", edit)
	}
}

// What Text writes, Azure's form reads, and each rule knows its entries.
func TestRulesKnowWhereTheyComeFrom(t *testing.T) {
	files := []File{
		{"kube-system/a", "ip-masq-agent", "nonMasqueradeCIDRs: [10.1.0.0/16, 10.2.0.0/16]\nmasqLinkLocal: false"},
		{"kube-system/b", "ip-masq-agent", "nonMasqueradeCIDRs: [10.2.0.0/16]"},
	}
	c, problems := Parse(Options{Form: FormV2}, files)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	set, err := Rules("current", service.IPv4, c)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range set.Chain {
		var from []string
		for _, o := range r.From {
			from = append(from, o.String())
		}
		got = append(got, r.Target.Name+" "+strings.Join(from, " & "))
	}
	want := []string{
		"RETURN ConfigMap kube-system/a, key ip-masq-agent, masqLinkLocal",
		"RETURN ConfigMap kube-system/a, key ip-masq-agent, nonMasqueradeCIDRs[0]",
		"RETURN ConfigMap kube-system/a, key ip-masq-agent, nonMasqueradeCIDRs[1] & ConfigMap kube-system/b, key ip-masq-agent, nonMasqueradeCIDRs[0]",
		"MASQUERADE ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestUnknownNames(t *testing.T) {
	if _, err := Rules("1.5", service.IPv4, defaults()); err == nil || !strings.Contains(err.Error(), "1.11, 1.12, 1.19, current") {
		t.Errorf("version 1.5: %v", err)
	}
	if _, err := FormOf("1.5"); err == nil {
		t.Error("version 1.5 has a form")
	}
	if _, err := ParseForm("v3"); !errors.Is(err, errForm) {
		t.Errorf("form v3: %v", err)
	}
	if f, err := ParseForm("v2"); err != nil || f != FormV2 {
		t.Errorf("form v2: %v %v", f, err)
	}
}

// More than 64 ranges a file are too many, of several files together they are not.
func TestLimitIsAFiles(t *testing.T) {
	list := func(n, second int) string {
		var b strings.Builder
		b.WriteString("nonMasqueradeCIDRs:\n")
		for i := range n {
			b.WriteString("- 10." + string(rune('0'+second)) + "." + itoa(i) + ".0/24\n")
		}
		return b.String()
	}
	for _, form := range []Form{FormV1, FormV2} {
		if c, problems := Parse(Options{Form: form}, []File{{"ns/a", FileV1, list(64, 1)}}); c == nil {
			t.Errorf("%s: 64: %v", form, problems)
		}
		c, problems := Parse(Options{Form: form}, []File{{"ns/a", FileV1, list(65, 1)}})
		if c != nil || len(problems) != 1 || problems[0].Entry != "nonMasqueradeCIDRs" || problems[0].Message != "65 ranges, more than 64" {
			t.Errorf("%s: 65: %v", form, problems)
		}
	}
	c, problems := Parse(Options{Form: FormV2}, []File{{"ns/a", FileV1, list(64, 1)}, {"ns/b", FileV1, list(64, 2)}})
	if c == nil || len(c.NonMasquerade) != 128 {
		t.Errorf("64 and 64: %v", problems)
	}
}

func itoa(i int) string {
	if i < 10 {
		return string(rune('0' + i))
	}
	return itoa(i/10) + itoa(i%10)
}
