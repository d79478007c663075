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
	found := map[string]int{}
	for _, c := range l.graph.Components() {
		of := reflect.TypeOf(c)
		for name, wanted := range optional {
			if _, ok := of.MethodByName(name); ok {
				found[name]++
				if !of.Implements(wanted) {
					t.Errorf("%v's method %s is not that of %v", of, name, wanted)
				}
			}
		}
	}
	if len(found) != len(optional) {
		t.Errorf("found %v", found)
	}
}
