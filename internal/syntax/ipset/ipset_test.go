package ipset

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/testing/kerneltest"
)

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func parse(t *testing.T, text string) []Set {
	t.Helper()
	sets, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return sets
}

func lowered(t *testing.T, text string) map[string]*netfilter.Set {
	t.Helper()
	sets, err := Lower(parse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return sets
}

// inNamespace runs a shell script in a network namespace that ends with it.
func inNamespace(t *testing.T, script, input string) string {
	t.Helper()
	kerneltest.NeedRoot(t)
	var errs strings.Builder
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-ec", script)
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, errs.String())
	}
	return string(out)
}

func TestPrint(t *testing.T) {
	text := read(t, "testdata/save.txt")
	if got := string(Print(parse(t, text))); got != text {
		t.Errorf("printed differently:\n%s", got)
	}
}

// TestList: "ipset list" tells the same as "ipset save", but for the sets that only the latter file has, and their order.
func TestList(t *testing.T) {
	saved := parse(t, read(t, "testdata/save.txt"))
	for _, s := range parse(t, read(t, "testdata/list.txt")) {
		i := slices.IndexFunc(saved, func(o Set) bool { return o.Name == s.Name })
		if i < 0 || string(Print(saved[i:i+1])) != string(Print([]Set{s})) {
			t.Errorf("listed differently:\n%s", Print([]Set{s}))
		}
	}
	// As in the article about ip-masq-agent and Calico.
	text := "Name: cali40masq-ipam-pools\nType: hash:net\nRevision: 6\nHeader: family inet hashsize 1024 maxelem 1048576\nSize in memory: 512\n" +
		"References: 1\nNumber of entries: 1\nMembers:\n10.240.0.0/16\n"
	s := lowered(t, text)["cali40masq-ipam-pools"]
	for a, want := range map[string]netfilter.Found{"10.240.3.4": netfilter.IsFound, "10.241.0.0": netfilter.NotFound} {
		key := []netfilter.Span{netfilter.Exactly(netfilter.AddressValue(netip.MustParseAddr(a)))}
		if _, found := s.Lookup(key); found != want {
			t.Errorf("%s: %d, want %d", a, found, want)
		}
	}
}

// TestRestore: what is printed can be restored, and is saved again as it was.
func TestRestore(t *testing.T) {
	var known []Set
	for _, s := range parse(t, read(t, "testdata/save.txt")) {
		if !strings.HasPrefix(s.Name, "d") { // not every kernel has these types
			known = append(known, s)
		}
	}
	out := inNamespace(t, "ipset restore; ipset save -sorted", string(Print(known)))
	again := parse(t, out)
	for _, list := range [][]Set{known, again} {
		for i := range list {
			list[i].Options = without(list[i].Options, "initval")
			for j := range list[i].Members {
				list[i].Members[j].Options = without(list[i].Members[j].Options, "timeout")
			}
			slices.SortFunc(list[i].Members, func(a, b Member) int { return strings.Compare(a.Element+a.Options, b.Element+b.Options) })
		}
		slices.SortFunc(list, func(a, b Set) int { return strings.Compare(a.Name, b.Name) })
	}
	if got, want := string(Print(again)), string(Print(known)); got != want {
		t.Errorf("saved again:\n%s\nwant:\n%s", got, want)
	}
}

// without takes an option with its value out.
func without(options, name string) string {
	fields := strings.Split(options, " ")
	if i := slices.Index(fields, name); i >= 0 && i+1 < len(fields) {
		fields = slices.Delete(fields, i, i+2)
	}
	return strings.Join(fields, " ")
}

// TestUnderstood: of the elements in the test data only the bridge port is unsure.
func TestUnderstood(t *testing.T) {
	for name, s := range lowered(t, read(t, "testdata/save.txt")) {
		unsure := 0
		for _, e := range s.Elements {
			if e.Unsure {
				unsure++
			}
			if len(e.Key) != len(s.Fields) {
				t.Errorf("%s: %v", name, e)
			}
		}
		if want := map[string]int{"a7": 1}[name]; unsure != want {
			t.Errorf("%s: %d unsure elements, want %d", name, unsure, want)
		}
	}
}

func TestErrors(t *testing.T) {
	for text, want := range map[string]string{
		"add a 1.1.1.1\n":                "line 1",
		"create a hash:ip\ncreate a x\n": "line 2",
		"create a\n":                     "line 1",
		"flush\n":                        "line 1",
		"Name: a\nWhat: x\n":             "line 2",
		"Name: a\nType: x y\n":           "line 2",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"create a hash:what\n", "create a what\n", "create a hash:ip netmask x\n", "create a hash:ip netmask 33\n",
		"create a hash:ip,mark markmask x\n", "create a hash:ip bitmask ::1\n"} {
		if _, err := Lower(parse(t, text)); err == nil {
			t.Errorf("%q is lowered", text)
		}
	}
}

// TestICMPNames: names of types mean what ipset takes them for.
func TestICMPNames(t *testing.T) {
	var input strings.Builder
	input.WriteString("create a hash:ip,port family inet\ncreate b hash:ip,port family inet6\n")
	for kind := range 18 {
		for code := range 16 {
			fmt.Fprintf(&input, "add a 10.0.%d.%d,icmp:%d/%d\n", kind, code, kind, code)
		}
	}
	for kind := range 140 {
		for code := range 6 {
			fmt.Fprintf(&input, "add b fd00::%x:%x,icmpv6:%d/%d\n", kind+1, code, kind, code)
		}
	}
	text := inNamespace(t, "ipset restore; ipset save", input.String())
	named := 0
	for _, s := range lowered(t, text) {
		for _, e := range s.Elements {
			a := e.Key[0].Low.Lo
			want := (a>>8&0xff)<<8 | a&0xff
			if s.Name == "b" {
				want = (a>>16-1)<<8 | a&0xffff
			}
			if e.Unsure || e.Key[2] != netfilter.Number(want) {
				t.Errorf("%s: element %x: %v, want %x", s.Name, a, e, want)
			}
			named++
		}
	}
	if named < 1000 || !strings.Contains(text, "ipv6-icmp:echo-request") {
		t.Errorf("%d elements", named)
	}
}

// TestKernel asks the kernel which of random elements are in random sets.
func TestKernel(t *testing.T) {
	for _, c := range []struct {
		create  string
		element func(r *rand.Rand, test bool) string
		nomatch bool
	}{
		{"hash:net family inet", func(r *rand.Rand, test bool) string { return net(r, test) }, true},
		{"hash:net family inet6", func(r *rand.Rand, test bool) string { return net6(r, test) }, true},
		{"hash:ip family inet netmask 30", func(r *rand.Rand, _ bool) string { return net(r, true) }, false},
		{"hash:net,port family inet", func(r *rand.Rand, test bool) string { return net(r, test) + "," + port(r) }, true},
		{"hash:ip,port family inet", func(r *rand.Rand, _ bool) string { return net(r, true) + "," + port(r) }, false},
		{"hash:ip,port,net family inet", func(r *rand.Rand, test bool) string {
			return "10.0.0.1," + port(r) + "," + net(r, test)
		}, true},
		{"hash:net,iface family inet", func(r *rand.Rand, test bool) string { return net(r, test) + fmt.Sprintf(",eth%d", r.IntN(2)) }, true},
		{"bitmap:port range 0-300", func(r *rand.Rand, _ bool) string { return fmt.Sprint(r.IntN(30)) }, false},
		{"bitmap:ip range 10.0.0.0/16", func(r *rand.Rand, _ bool) string { return net(r, true) }, false},
	} {
		compareWithKernel(t, c.create, c.element, c.nomatch)
	}
}

// net returns an address out of a few, or a network around one.
func net(r *rand.Rand, single bool) string {
	a := fmt.Sprintf("10.0.%d.%d", r.IntN(2), r.IntN(64))
	if single {
		return a
	}
	return fmt.Sprintf("%s/%d", a, 22+r.IntN(11))
}

func net6(r *rand.Rand, single bool) string {
	a := fmt.Sprintf("fd00::%x:%x", r.IntN(2), r.IntN(64))
	if single {
		return a
	}
	return fmt.Sprintf("%s/%d", a, 110+r.IntN(19))
}

func port(r *rand.Rand) string {
	switch r.IntN(4) {
	case 0:
		return fmt.Sprintf("icmp:%d/0", r.IntN(20))
	case 1:
		return fmt.Sprintf("udp:%d", r.IntN(4))
	}
	return fmt.Sprintf("tcp:%d", r.IntN(4))
}

func compareWithKernel(t *testing.T, create string, element func(*rand.Rand, bool) string, nomatch bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 7))
	var input strings.Builder
	fmt.Fprintf(&input, "create s %s\n", create)
	for range 12 {
		flag := ""
		if nomatch && r.IntN(4) == 0 {
			flag = " nomatch"
		}
		fmt.Fprintf(&input, "add s %s%s\n", element(r, false), flag)
	}
	input.WriteString("\n")
	var tests []string
	for range 150 {
		tests = append(tests, element(r, true))
	}
	out := inNamespace(t, `while read -r line; do [ -n "$line" ] || break; echo "$line"; done | ipset -exist restore; ipset save
echo; while read -r e; do if ipset -q test s "$e"; then echo 1; else echo 0; fi; done`, input.String()+strings.Join(tests, "\n")+"\n")
	saved, answers, _ := strings.Cut(out, "\n\n")
	set := lowered(t, saved)["s"]
	held := 0
	for i, want := range strings.Fields(answers) {
		kind := strings.Fields(create)[0]
		key := lowered(t, "create q "+create+"\nadd q "+tests[i]+"\n")["q"].Elements[0].Key
		e, found := set.Lookup(key)
		got := "0"
		if found == netfilter.IsFound && !e.NoMatch {
			got = "1"
		}
		if got == "1" {
			held++
		}
		if got != want || found == netfilter.CannotTell {
			t.Errorf("%s: %s: %s (%d), the kernel says %s", kind, tests[i], got, found, want)
		}
	}
	if n := len(strings.Fields(answers)); n != len(tests) || held == 0 || held == n {
		t.Errorf("%s: %d answers, %d yes", create, n, held)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"testdata/save.txt", "testdata/list.txt"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		sets, err := Parse(data)
		if err != nil {
			return
		}
		printed := Print(sets)
		again, err := Parse(printed)
		if err != nil {
			t.Fatalf("printed, it does not parse: %v\n%s", err, printed)
		}
		if second := Print(again); string(second) != string(printed) {
			t.Fatalf("printed %q, then %q", printed, second)
		}
		lowered, err := Lower(sets)
		if err != nil {
			return
		}
		for _, s := range lowered {
			key := make([]netfilter.Span, len(s.Fields))
			s.Lookup(key)
			for i := range key {
				key[i].High = netfilter.AllOnes
			}
			s.Lookup(key)
		}
	})
}
