package ebtables

import (
	"os"
	"testing"

	"packetwalk.dev/internal/testing/ruletest"
)

func FuzzParse(f *testing.F) {
	data, err := os.ReadFile("testdata/ebtables.txt")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(data))
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Parse([]byte(text))
		if err != nil {
			return
		}
		printed := e.String()
		again, err := Parse([]byte(printed))
		if err != nil {
			t.Fatalf("printed, it does not parse: %v\n%s", err, printed)
		}
		if second := again.String(); second != printed {
			t.Fatalf("printed %q, then %q", printed, second)
		}
		tables, err := Lower(e)
		if err != nil {
			return
		}
		ruletest.Evaluate(t, tables)
	})
}
