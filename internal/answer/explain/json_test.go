package explain

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestFieldsAreDocumented: docs/walk-json.md names every field of a Document.
func TestFieldsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/walk-json.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	var check func(reflect.Type)
	check = func(typ reflect.Type) {
		for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "" || !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("%s.%s, in JSON %q, is not on the page", typ.Name(), typ.Field(i).Name, name)
			}
			check(typ.Field(i).Type)
		}
	}
	check(reflect.TypeFor[Document]())
}
