package ruleset

import (
	"testing"

	"golang.org/x/sys/unix"

	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// FuzzRuleHandle: whatever the kernel answers, reading it takes what there is and no more.
func FuzzRuleHandle(f *testing.F) {
	f.Add(nf.Attrs{
		{Kind: unix.NFTA_RULE_TABLE, Value: "nat"}, {Kind: unix.NFTA_RULE_CHAIN, Value: "OUTPUT"},
		{Kind: unix.NFTA_RULE_HANDLE, Value: []byte{0, 0, 0, 0, 0, 0, 0, 9}},
	}.Append([]byte{2, 0, 0, 0}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if handle, err := ruleHandle(data, "OUTPUT"); err != nil && len(data) < nfgenLen && handle != 0 {
			t.Errorf("handle %d of nothing", handle)
		}
	})
}
