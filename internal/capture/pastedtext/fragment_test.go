package pastedtext

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/testing/goldentest"
	"packetwalk.dev/internal/writers"
)

var everywhere = newKnownRules(writers.Book(&snapshot.Objects{}))

// TestFragments reads texts out of articles about AKS, and some made up: each file has the text, the tables, what was assumed, and the
// blocks of other programs.
func TestFragments(t *testing.T) {
	goldentest.Run(t, "testdata/fragments/*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		f, err := everywhere.parse("", in[0].Data)
		if err != nil {
			t.Fatal(err)
		}
		return golden(&f)
	})
}

func golden(f *Contents) []txtar.File {
	files := []txtar.File{{Name: "tables", Data: iptables.AppendSave(nil, f.Tables)}}
	if len(f.IPv6) > 0 {
		files = append(files, txtar.File{Name: "IPv6 tables", Data: iptables.AppendSave(nil, f.IPv6)})
	}
	var b bytes.Buffer
	for _, a := range f.Assumed {
		fmt.Fprintf(&b, "%s (line %d): %s\n", a.Kind, a.Line, a.Text)
	}
	files = append(files, txtar.File{Name: "assumed", Data: b.Bytes()})
	for _, block := range f.Blocks {
		files = append(files, txtar.File{Name: fmt.Sprintf("%s from line %d", block.Kind, block.Line), Data: block.Text})
	}
	return files
}

func TestWholeDumpNeedsNoAssumption(t *testing.T) {
	dump, err := os.ReadFile("../../syntax/iptables/testdata/syntax.save")
	if err != nil {
		t.Fatal(err)
	}
	dump = bytes.Replace(dump, []byte("-A KUBE-SVC -m comment --comment \"only note\"\n"), nil, 1) // it may be cut off
	want, err := iptables.Parse(dump)
	if err != nil {
		t.Fatal(err)
	}
	f, err := everywhere.parse("", dump)
	if err != nil || len(f.Assumed) > 0 || len(f.IPv6) > 0 {
		t.Errorf("assumed %v, %v", f.Assumed, err)
	}
	if diff := cmp.Diff(string(iptables.AppendSave(nil, want)), string(iptables.AppendSave(nil, f.Tables))); diff != "" {
		t.Error(diff)
	}
	six := bytes.ReplaceAll(dump, []byte("by iptables-save"), []byte("by ip6tables-save"))
	if f, err = everywhere.parse("", six); err != nil || len(f.IPv6) != 2 || len(f.Tables) != 0 {
		t.Errorf("ip6tables: %d and %d tables, %v", len(f.Tables), len(f.IPv6), err)
	}
	// Both dumps in one text, and a route behind them: still nothing is missing from the tables that are there.
	text := string(dump) + string(six) + "\ndefault via 10.0.0.1 dev eth0\n"
	if f, err = everywhere.parse("", []byte(text)); err != nil || len(f.IPv6) != 2 || len(f.Tables) != 2 || len(f.Blocks) != 1 {
		t.Fatalf("both: %d and %d tables, %v", len(f.Tables), len(f.IPv6), err)
	}
	if diff := cmp.Diff(string(iptables.AppendSave(nil, want)), string(iptables.AppendSave(nil, f.Tables))); diff != "" {
		t.Error(diff)
	}
	for _, a := range f.Assumed {
		if a.Kind == assumedJump || a.Kind == assumedContents || a.Kind == missingRules || a.Kind == assumedTable {
			t.Errorf("assumed: %s", a.Text)
		}
	}
}

func TestNothingFound(t *testing.T) {
	for _, text := range []string{"", "hello", "iptables is a program.\nIt has tables: nat, filter.\n", "# iptables -L"} {
		if f, err := everywhere.parse("", []byte(text)); !errors.Is(err, ErrNothingFound) {
			t.Errorf("%q: %+v, %v", text, f, err)
		}
	}
}

func TestMergeRules(t *testing.T) {
	list := func(s string) []textRule {
		var out []textRule
		for _, name := range strings.Fields(s) {
			out = append(out, newShown(0, iptables.Rule{Target: iptables.Jump(name)}, false))
		}
		return out
	}
	for _, c := range []struct{ a, b, want string }{
		{"A B", "A B", "A B"},
		{"A C", "A B C", "A B C"},
		{"A B C", "B", "A B C"},
		{"B", "A B C", "A B C"},
		{"A A", "A A", "A A"},
		{"A", "A A", "A A"},
		{"A B", "B A", "A B"},
		{"", "A", "A"},
		{"A B A", "A A", "A B A"},
		{"A B", "B C", "A B C"},
		{"A B", "C B", "C A B"},
		{"A B C", "X A Y C Z", "X A Y B C Z"},
	} {
		var got []string
		for _, s := range mergeRules(list(c.a), list(c.b)) {
			got = append(got, s.rule.Target.Name)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%q and %q: got %q, want %q", c.a, c.b, s, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/fragments/*.txtar")
	for _, file := range files {
		if a, err := txtar.ParseFile(file); err == nil {
			f.Add(a.Files[0].Data)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		checkLines(t, string(text))
		e, err := everywhere.parse("", text)
		if err != nil {
			return
		}
		for _, tables := range [][]iptables.Table{e.Tables, e.IPv6} {
			once := iptables.AppendSave(nil, tables)
			again, err := iptables.Parse(once)
			if err != nil {
				t.Fatalf("cannot read what was printed: %v\n%s", err, once)
			}
			if twice := iptables.AppendSave(nil, again); !bytes.Equal(once, twice) {
				t.Fatalf("printed differently:\n%s\n%s", once, twice)
			}
		}
	})
}

// TestAbout: where a text shows the rules at two times, those that know the address in question are taken.
func TestAbout(t *testing.T) {
	a, err := txtar.ParseFile("testdata/fragments/two-times.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ about, has, hasNot string }{
		{"51.144.176.251", "-A KUBE-FW-7G2JV7LNOR6DDNIY -m comment --comment \"default/whereami: loadbalancer IP\" -j KUBE-SVC-7G2JV7LNOR6DDNIY",
			"KUBE-XLB"},
		{"10.13.76.26", "-d 51.144.176.251/32", "KUBE-XLB"},
		{"13.93.66.174", "-j KUBE-XLB-7G2JV7LNOR6DDNIY", "51.144.176.251"},
		{"192.0.2.1", "-j KUBE-XLB-7G2JV7LNOR6DDNIY", "51.144.176.251"},
	} {
		f, err := everywhere.parse("", a.Files[0].Data, netip.MustParseAddr(tt.about))
		if err != nil {
			t.Fatal(err)
		}
		text := string(iptables.AppendSave(nil, f.Tables))
		if !strings.Contains(text, tt.has) || strings.Contains(text, tt.hasNot) {
			t.Errorf("about %s: want %s and not %s in\n%s", tt.about, tt.has, tt.hasNot, text)
		}
	}
}

// TestOrigin: what was seen in another namespace or on another machine is left out; what was seen in the same one by the same way in is
// not.
func TestOrigin(t *testing.T) {
	const rules = "iptables-save\n*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n"
	const addresses = "ip addr\n2: eth0: <UP> mtu 1500 state UP\n    inet 10.1.0.4/24 scope global eth0\n"
	for _, tt := range []struct {
		name, text string
		kept       bool
	}{
		{"no prompts", "# " + rules + addresses, true},
		{"same prompt", "jose@aks-0:~$ sudo " + rules + "jose@aks-0:~$ " + addresses, true},
		{"same machine as root", "jose@aks-0:~$ sudo " + rules + "root@aks-0:/etc# " + addresses, true},
		{"another machine", "jose@aks-0:~$ sudo " + rules + "jose@jumphost:~$ " + addresses, false},
		{"a node and its shell", "$ ssh azureuser@10.1.0.4 sudo " + rules + "$ ssh 10.1.0.4 " + addresses, true},
		{"a pod's namespace", "jose@aks-0:~$ sudo " + rules + "jose@aks-0:~$ sudo nsenter -t 29634 -n " + addresses, false},
		{"both through a debug pod", "$ kubectl exec debug -- chroot /host " + rules + "$ kubectl exec debug -- chroot /host " + addresses, true},
		{"a shell in a pod", "jose@aks-0:~$ sudo " + rules + "$ k exec -it kuard -- /bin/ash\n~ $ " + addresses, false},
		{"back from a shell", "$ sudo " + rules + "$ k exec -it kuard -- /bin/ash\n~ $ ls\n~ $ exit\n$ " + addresses, true},
		{"ssh", "$ ssh -i key azureuser@10.1.0.4\n$ sudo " + rules + "$ " + addresses, true},
		{"a named namespace", "root@h:~# " + rules + "root@h:~# ip netns exec pod " + addresses, false},
	} {
		f, err := everywhere.parse("aks-0", []byte(tt.text))
		if several := (*SeveralHostsError)(nil); errors.As(err, &several) {
			f, err = everywhere.parse("", []byte(tt.text))
		}
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if kept := len(f.Blocks) == 1; kept != tt.kept || len(f.Tables) != 1 {
			t.Errorf("%s: addresses kept %t, %d tables, assumed %v", tt.name, kept, len(f.Tables), f.Assumed)
		}
	}
}

// TestSeveralMachines: of several machines none is taken silently.
func TestSeveralMachines(t *testing.T) {
	const rules, routes = "iptables -t nat -S\n-A POSTROUTING -j MASQUERADE\n", "ip route\ndefault via 192.0.2.1 dev eth0\n"
	for text, want := range map[string][]string{
		"root@n1:~# " + rules + "root@n2:~# " + routes:                                                           {"n1", "n2"},
		"root@n1:~# " + routes + "root@n2:~# " + rules:                                                           {"n1", "n2"},
		"$ ssh n1 " + rules + "$ ssh n2 " + routes:                                                               {"n1", "n2"},
		"$ ssh n1 " + rules + "$ " + routes:                                                                      {"n1", "line-4"},
		"$ ssh n1\n$ " + rules + "$ exit\n$ " + routes:                                                           {"n1", "line-6"},
		"$ ssh n1\nroot@n1:~# " + rules + "root@n1:~# " + routes:                                                 nil,
		"$ docker exec a " + routes + "$ docker exec b " + routes:                                                {"docker exec a", "docker exec b"},
		"$ kubectl debug node/n1 -it --image=busybox -- chroot /host " + rules + "$ ssh n1 " + routes:            nil,
		"$ kubectl debug -it node/n1 --image=x\n/ # " + rules + "/ # exit\n$ kubectl node-shell n2 -- " + routes: {"n1", "n2"},
	} {
		_, err := everywhere.parse("", []byte(text))
		several := &SeveralHostsError{}
		if errors.As(err, &several); !slices.Equal(several.Names, want) {
			t.Errorf("%q: got %v, want %v", text, err, want)
		}
		for _, name := range want {
			if _, err := everywhere.parse(name, []byte(text)); err != nil {
				t.Errorf("%q: at %s: %v", text, name, err)
			}
		}
		if _, err := everywhere.parse("n3", []byte(text)); want != nil && err == nil {
			t.Errorf("%q: n3 was found", text)
		}
	}
}

// TestTimes: a pipeline that shows what a wider one before it did not, or the same one that shows something else, is of another time.
func TestTimes(t *testing.T) {
	const wide = "$ sudo iptables-save | grep web\n-A KUBE-SVC-A -m comment --comment web -j KUBE-SEP-A\n-A KUBE-SVC-B -m comment --comment web -j KUBE-SEP-B\n"
	for _, tt := range []struct {
		name, text string
		has, lacks string
	}{
		{"the same", wide + wide, "KUBE-SEP-A", "KUBE-SEP-C"},
		{"the same, changed", wide + "\n$ sudo iptables-save|grep web\n-A KUBE-SVC-A -m comment --comment web -j KUBE-SEP-A\n", "KUBE-SEP-A",
			"KUBE-SEP-B"},
		{"a part", wide + "\n$ sudo iptables-save | grep web | grep SVC-A\n-A KUBE-SVC-A -m comment --comment web -j KUBE-SEP-A\n", "KUBE-SEP-B",
			"KUBE-SEP-C"},
		{"a part, changed", wide + "\n$ sudo iptables-save | grep web | grep SVC-A\n-A KUBE-SVC-A -m comment --comment web -j KUBE-SEP-C\n",
			"KUBE-SEP-C", "KUBE-SEP-A"},
		{"another word", wide + "\n$ sudo iptables-save | grep webs\n-A KUBE-SVC-C -m comment --comment webs -j KUBE-SEP-C\n", "KUBE-SEP-A",
			"KUBE-SEP-D"},
	} {
		f, err := everywhere.parse("", []byte(tt.text))
		if err != nil {
			t.Fatal(err)
		}
		if text := string(iptables.AppendSave(nil, f.Tables)); !strings.Contains(text, tt.has) || strings.Contains(text, tt.lacks) {
			t.Errorf("%s: want %s and not %s in\n%s", tt.name, tt.has, tt.lacks, text)
		}
	}
}

// TestTableUnknown: nothing tells which table a rule of a chain that several have stands in, and then it is left out.
func TestTableUnknown(t *testing.T) {
	f, err := everywhere.parse("", []byte("-A PREROUTING -i eth0 -j MINE\n-A FORWARD -j DROP\n"))
	if err != nil || len(f.Tables) != 1 || f.Tables[0].Name != iptables.Filter {
		t.Fatalf("%v, %v", f.Tables, err)
	}
	if a := f.Assumed[0]; a.Kind != leftOut || a.Text != "PREROUTING: unknown table; its rules are left out" {
		t.Errorf("told: %+v", a)
	}
}
