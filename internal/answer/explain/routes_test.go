package explain

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/syntax/iproute"
)

// TestPolicyTests reads rules as ip(8) prints them. All that they select with is named, in the same words.
func TestPolicyTests(t *testing.T) {
	for _, tests := range []string{
		"not from all fwmark 0xca6c", "not from 10.0.0.0/24", "not from 10.0.0.0/24 to 10.1.0.0/16 iif eth0", "to 10.1.0.0/16",
		"fwmark 0x100/0xff00", "oif eth1", "uidrange 1000-1999", "ipproto tcp", "ipproto udp sport 53 dport 1000-1999", "dport 0x10/0xf0",
		"tos 0x10", "iif eth0 l3mdev", "",
	} {
		from := ""
		if !strings.Contains(tests, "from") {
			from = "from all "
		}
		rules, err := iproute.ParseRulesText("100:\t"+from+strings.Replace(tests, " l3mdev", "", 1)+" lookup 7\n", false)
		if err != nil || len(rules) != 1 || rules[0].Unknown {
			t.Fatalf("%s: %+v, %v", tests, rules, err)
		}
		rules[0].L3MDev = strings.Contains(tests, "l3mdev")
		want := ""
		if tests != "" {
			want = ": " + tests
		}
		if got := policyTests(&rules[0]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestRefusingRule: a rule that refuses the packet itself is named.
func TestRefusingRule(t *testing.T) {
	a := &fib.Answer{Type: "prohibit", Rule: &fib.Rule{Priority: 9, UIDs: [2]uint32{5, 5}, HasUIDs: true, Action: "prohibit"}}
	if got := routeText(a); got != "prohibit, by policy rule 9: uidrange 5-5" {
		t.Error(got)
	}
}
