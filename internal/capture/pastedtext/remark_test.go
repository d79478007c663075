package pastedtext

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/model/attribution"
)

// TestRemark: a rule that has only comments is complete where its table is shown whole and a longer rule of it is, and otherwise may be cut
// off.
func TestRemark(t *testing.T) {
	const (
		remark = `-A web -m comment --comment "Policy shop/web ingress"` + "\n"
		longer = `-A db -s 10.0.0.0/8 -p tcp -m comment --comment "Policy shop/database ingress" -m tcp --dport 5432 -j ACCEPT` + "\n"
		head   = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:db - [0:0]\n:web - [0:0]\n-A FORWARD -j web\n"
	)
	for name, c := range map[string]struct {
		text     string
		complete bool
	}{
		"whole table":                      {head + longer + remark + "COMMIT\n", true},
		"whole table, nothing longer":      {head + remark + "COMMIT\n", false},
		"some lines":                       {longer + remark, false},
		"a match beside it":                {head + longer + strings.Replace(remark, "-m", "-p tcp -m", 1) + "COMMIT\n", false},
		"the end of the table is not seen": {head + longer + remark, false},
	} {
		t.Run(name, func(t *testing.T) {
			contents, err := Parse(&attribution.Book{}, "n", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			complete := false
			for i := range contents.Tables {
				if chain := contents.Tables[i].Chain("web"); chain != nil && len(chain.Rules) == 1 {
					complete = chain.Rules[0].Unknown == ""
				}
			}
			if complete != c.complete {
				t.Errorf("complete: %v", complete)
			}
		})
	}
}
