package explain

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/base/limitio"
)

// earlier returns a walk as its JSON gives it.
func earlier(t *testing.T, e example) *Earlier {
	t.Helper()
	var b bytes.Buffer
	if err := JSON(&b, e.result, Options{Owners: ownersOf(e.objects)}); err != nil {
		t.Fatal(err)
	}
	read, err := ReadEarlier(&b)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func compared(t *testing.T, before *Earlier, now example) string {
	t.Helper()
	var b bytes.Buffer
	if err := Compare(&b, "before.json", before, now.result, Options{Owners: ownersOf(now.objects), Notes: []string{"a note"}}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestCompare(t *testing.T) {
	rules := func(lines string) string {
		return routes + "$ iptables-save\n*filter\n:FORWARD ACCEPT [0:0]\n" + lines + "COMMIT\n"
	}
	const others = "-A FORWARD -p tcp -m tcp --dport 25 -j DROP\n"
	accepts := forwarded(t, rules("-A FORWARD -d 10.13.1.4/32 -m comment --comment \"the database\" -j ACCEPT\n"+others))
	drops := forwarded(t, rules(others+"-A FORWARD -d 10.13.1.4/32 -m comment --comment \"no access\" -j DROP\n"))
	t.Run("a rule that drops", func(t *testing.T) {
		got := compared(t, earlier(t, accepts), drops)
		got, _, _ = strings.Cut(got, "\na note\n")
		want := `tcp 10.13.76.7:41000 → 10.13.1.4:5432
--- before.json
+++ now

what the destination sees:
- as far as the state was read, the destination sees the sender's own address, 10.13.76.7:41000, because no rule translates it
-   - the network beyond node n is unknown
-   - not read on node n: nftables rules, links, connections, policy rules, sysctls, neighbours, other ends of wires
+ as far as the state was read, the destination sees nothing: dropped on node n by filter FORWARD 2: DROP (no access)
+   - not read on node n: nftables rules, links, connections, policy rules, sysctls

outcomes:
- 100 %  node n: leaves the known network
+ 100 %  node n: dropped: filter FORWARD 2: DROP (no access)

the first step that differs, of outcome 1 before and 1 now, after 8 steps that are the same:
- node n: filter FORWARD 1: -d 10.13.1.4/32 -m comment --comment "the database" -j ACCEPT (the database)
+ node n: filter FORWARD 2: -d 10.13.1.4/32 -m comment --comment "no access" -j DROP (no access)

assumed, where it differs:
- node n: the network beyond eth0 is unknown; assuming the reply returns the same way
- node n: the owner of 10.13.0.1 on eth0 is not in the snapshot; assuming it answers
`
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("a rule that moved", func(t *testing.T) {
		moved := forwarded(t, rules(others+"-A FORWARD -d 10.13.1.4/32 -m comment --comment \"the database\" -j ACCEPT\n"))
		got := compared(t, earlier(t, accepts), moved)
		if strings.Contains(got, "\n- ") || strings.Contains(got, "\n+ ") || !strings.Contains(got, "\noutcomes, as before:\n") {
			t.Errorf("a rule with another number is the same:\n%s", got)
		}
	})
	t.Run("one of several outcomes", func(t *testing.T) {
		all := fromInternet(t)
		before := earlier(t, all)
		few := all
		result := *all.result
		result.Outcomes = result.Outcomes[1:]
		few.result = &result
		got := compared(t, before, few)
		for _, want := range []string{
			"\n- 50 %  internet client → load balancer → node aks-nodepool1-31351229-0, SNAT 10.13.76.4 → pod default/whereami-58ffd64b78-65fpd\n",
			"\n  50 %  internet client → load balancer → node aks-nodepool1-31351229-0, SNAT 10.13.76.4 → pod default/whereami-58ffd64b78-8k25v\n",
			"- node aks-nodepool1-31351229-0: nat KUBE-SVC-AYIUZSRKUWY4XTSW 2: ",
			"+ node aks-nodepool1-31351229-0: nat KUBE-SVC-AYIUZSRKUWY4XTSW 3: ",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	})
}

// hostile are files that are no walks, or whose texts are to be shown with care.
var hostile = map[string]string{
	"empty":             ``,
	"not JSON":          `PK`,
	"another kind":      `{"apiVersion":"packetwalk.dev/v1alpha1","kind":"Network","headline":"x"}`,
	"no headline":       `{"apiVersion":"packetwalk.dev/v1alpha1","kind":"Walk"}`,
	"more behind it":    `{"apiVersion":"packetwalk.dev/v1alpha1","kind":"Walk","headline":"x"}{}`,
	"numbers for steps": `{"apiVersion":"packetwalk.dev/v1alpha1","kind":"Walk","headline":"x","outcomes":[1,1]}`,
	"nulls for steps":   `{"apiVersion":"packetwalk.dev/v1alpha1","kind":"Walk","headline":"x","outcomes":[null,null]}`,
	"object for array":  `{"apiVersion":"packetwalk.dev/v1alpha1","kind":"Walk","headline":"x","outcomes":{}}`,
	"empty steps": `{"apiVersion":"packetwalk.dev/v1alpha1","kind":"Walk","headline":"x","outcomes":[{"short":"x","end":{},` +
		`"results":[{"node":"node/a","observations":[{},{}]}]}]}`,
	"probability": `{"apiVersion":"packetwalk.dev/v1alpha1","kind":"Walk","headline":"x","outcomes":[{"short":"x","end":{},"probabilityDecimal":1e99}]}`,
	"deep":        strings.Repeat(`{"outcomes":[`, 50_000),
}

func TestReadEarlier(t *testing.T) {
	for name, text := range hostile {
		t.Run(name, func(t *testing.T) {
			if _, err := ReadEarlier(strings.NewReader(text)); err == nil || len(err.Error()) > 300 {
				t.Errorf("got %v, want a short error", err)
			}
		})
	}
	t.Run("too long", func(t *testing.T) {
		_, err := ReadEarlier(strings.NewReader(strings.Repeat(" ", MostEarlier+1)))
		if _, ok := errors.AsType[*limitio.TooLongError](err); !ok {
			t.Errorf("got %v, want a TooLongError", err)
		}
	})
	t.Run("control characters", func(t *testing.T) {
		before, err := ReadEarlier(strings.NewReader(`{"apiVersion":"packetwalk.dev/v1alpha1","kind":"Walk","headline":"x\u001b[2J\n+ y",` +
			`"packet":{"protocol":"tcp\u001b[2J"},"outcomes":[{"short":"a\u001b[2J\n+ b","end":{"node":"\u001b[2J","kind":"\u202e"}}],` +
			`"assumed":[{"what":"\u001b[2J\n+ c"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		got := compared(t, before, dropped(t))
		if strings.ContainsAny(got, "\x1b\u202e") || strings.Contains(got, "\n+ b") || strings.Contains(got, "\n+ y") {
			t.Errorf("an earlier walk controls the output:\n%q", got)
		}
	})
}

func FuzzReadEarlier(f *testing.F) {
	for _, text := range hostile {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if e, err := ReadEarlier(bytes.NewReader(data)); err == nil {
			closest(e, e)
			e.conclusions()
			e.rows()
		}
	})
}
