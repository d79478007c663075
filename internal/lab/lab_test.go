package lab

import (
	"reflect"
	"testing"

	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
)

// TestOptionalMethods: a component's Change, Report or Stop has the signature of its interface. With another one it would never be called.
func TestOptionalMethods(t *testing.T) {
	l, err := newLab(layout.Dir(t.TempDir()), layout.Binaries{}, func(lifecycle.Step) {})
	if err != nil {
		t.Fatal(err)
	}
	optional := map[string]reflect.Type{
		"Change": reflect.TypeFor[lifecycle.Changer](), "Report": reflect.TypeFor[lifecycle.Reporter](), "Stop": reflect.TypeFor[lifecycle.Stopper](),
	}
	changers := 0
	for _, c := range l.graph.Components() {
		of := reflect.TypeOf(c)
		all := of // with those of a pointer to it, which would not be called either
		if of.Kind() != reflect.Pointer {
			all = reflect.PointerTo(of)
		}
		for name, wanted := range optional {
			if _, ok := all.MethodByName(name); ok && !of.Implements(wanted) {
				t.Errorf("%v's method %s is not that of %v", of, name, wanted)
			}
		}
		if of.Implements(optional["Change"]) {
			changers++
		}
	}
	if changers != 9 {
		t.Errorf("%d components have Change; if one was meant to gain or lose it, change this number", changers)
	}
}
