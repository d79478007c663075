package proxyconfig

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestChartSchema: the chart takes each field that has an effect, but for those that it writes itself, and no others.
func TestChartSchema(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/chart/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties           map[string]json.RawMessage
		AdditionalProperties *bool
	}
	var parse func(path string, text []byte) []string
	parse = func(path string, text []byte) (fields []string) {
		var s schema
		if err := json.Unmarshal(text, &s); err != nil || s.Properties == nil {
			return []string{path}
		}
		if s.AdditionalProperties == nil || *s.AdditionalProperties {
			t.Errorf("%s takes any field", path)
		}
		for name, one := range s.Properties {
			fields = append(fields, parse(strings.TrimPrefix(path+"."+name, "."), one)...)
		}
		return fields
	}
	var root schema
	for _, name := range []string{"", "serviceProxy", "config"} {
		if name != "" {
			text = root.Properties[name]
		}
		root = schema{}
		if err := json.Unmarshal(text, &root); err != nil {
			t.Fatal(err)
		}
	}
	own := []string{"apiVersion", "kind", "hostnameOverride", "healthzBindAddress", "metricsBindAddress", "mode", "clusterCIDR", "clientConnection.kubeconfig"}
	want := slices.DeleteFunc(fields("", reflect.TypeFor[Configuration]()), func(name string) bool { return slices.Contains(own, name) })
	got := parse("", text)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the chart takes %q, want %q", got, want)
	}
}

// fields returns the paths of the fields of a type that have an effect.
func fields(path string, of reflect.Type) (names []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || f.Tag.Get("effect") == "none" {
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		if f.Type.Kind() == reflect.Struct && f.Type.PkgPath() == of.PkgPath() {
			names = append(names, fields(at, f.Type)...)
		} else {
			names = append(names, at)
		}
	}
	return names
}
