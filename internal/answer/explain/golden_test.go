package explain

import (
	"bytes"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/testing/goldentest"
)

// TestGolden writes each walk of world_test.go in every form that is text.
func TestGolden(t *testing.T) {
	for name, walked := range map[string]func(*testing.T) example{
		"from-internet": fromInternet, "to-vm": toVM, "dropped": dropped, "unknown": unknown, "looped": looped,
	} {
		t.Run(name, func(t *testing.T) {
			e := walked(t)
			document, o := e.result, Options{Owners: ownersOf(e.objects), Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			if name == "dropped" {
				document = e.everyRule // for the field "failed"
			}
			a := &txtar.Archive{}
			for _, form := range []struct {
				name  string
				write func(b *bytes.Buffer) error
			}{
				{"text", func(b *bytes.Buffer) error { return Text(b, e.result, o) }},
				{"wide", func(b *bytes.Buffer) error { return Wide(b, e.everyRule, o) }},
				{"short", func(b *bytes.Buffer) error { return Short(b, e.result, o) }},
				{"json", func(b *bytes.Buffer) error { return JSON(b, document, o) }},
			} {
				var b bytes.Buffer
				if err := form.write(&b); err != nil {
					t.Fatal(err)
				}
				a.Files = append(a.Files, txtar.File{Name: form.name, Data: b.Bytes()})
			}
			goldentest.File(t, "testdata/"+name+".txtar", string(txtar.Format(a)))
		})
	}
}
