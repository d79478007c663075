package tour

import (
	"strings"
	"testing"
)

// TestHeadingNumber: a page's own number of a heading is not printed beside the tour's.
func TestHeadingNumber(t *testing.T) {
	var out strings.Builder
	v := View{Writer: &out}
	v.Heading("2. The rules", 2, 12)
	v.Heading("1.11 and later", 3, 12)
	if want := "\n== 2/12  The rules\n\n== 3/12  1.11 and later\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
