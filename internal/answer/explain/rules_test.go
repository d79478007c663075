package explain

import (
	"testing"

	"packetwalk.dev/internal/model/netfilter"
)

// TestShort: a rule is shown without its comment, whatever the comment has.
func TestShort(t *testing.T) {
	for text, want := range map[string]string{
		`-d 10.88.0.0/16 -m comment --comment "name: \"bridge\" id: \"8d06\"" -j ACCEPT`: "-d 10.88.0.0/16 -j ACCEPT",
		`-m comment --comment "bridge\" id: \"8d06" -j MASQUERADE`:                       "-j MASQUERADE",
		`-m comment --comment "ends in \\" -m mark --mark 0x1 -j DROP`:                   "-m mark --mark 0x1 -j DROP",
		`-m comment --comment plain -p tcp -m tcp --dport 80 -j DROP`:                    "-p tcp --dport 80 -j DROP",
		`tcp dport 80 counter packets 1 bytes 2 accept comment "a \ b"`:                  "tcp dport 80 accept",
	} {
		if got := ruleWithoutComments(&netfilter.Rule{Text: text}); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
