package proxyconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2" // the parser of sigs.k8s.io/yaml
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Read reads a file, YAML or JSON. Fields that are not known and fields that occur twice are no error, as for kube-proxy, which takes the
// last of several; of several documents it reads the first, whatever the others are. strange names each, as `unknown field "ipvs.shedule"`.
func Read(text []byte) (c *Configuration, strange []string, err error) {
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		lenient, fault := yaml.YAMLToJSON(text)
		if fault != nil {
			return nil, nil, fmt.Errorf("neither YAML nor JSON: %w", fault)
		}
		strange = append(strange, strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:")), " "))
		asJSON = lenient
	}
	c = &Configuration{}
	more, err := json.UnmarshalStrict(asJSON, c)
	if err != nil {
		return nil, nil, err
	}
	for _, one := range more {
		strange = append(strange, one.Error())
	}
	if hasMore(text) {
		strange = append(strange, "a second document, of which nothing is read")
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return nil, nil, fmt.Errorf("apiVersion %q, kind %q: want %s, %s", c.APIVersion, c.Kind, APIVersion, Kind)
	}
	return c, strange, nil
}

// hasMore reports whether there is anything after the first document.
func hasMore(text []byte) bool {
	documents := yamlv2.NewDecoder(bytes.NewReader(text))
	var one, more any
	_ = documents.Decode(&one)
	err := documents.Decode(&more)
	return more != nil || err != nil && !errors.Is(err, io.EOF)
}

// WithoutEffect returns the paths of fields that are set and that packetwalk-node does nothing with, here or in the mode that is set.
func (c *Configuration) WithoutEffect() []string {
	nftables := c.Mode == ModeNFTables
	mode := cmp.Or(c.DetectLocalMode, LocalClusterCIDR)
	return withoutEffect("", reflect.ValueOf(*c), map[string]bool{
		"iptables": nftables, "nftables": !nftables,
		"clusterCIDR":                     mode != LocalClusterCIDR,
		"detectLocal.bridgeInterface":     mode != LocalBridgeInterface,
		"detectLocal.interfaceNamePrefix": mode != LocalInterfaceNamePrefix,
	}, false)
}

// withoutEffect returns the paths at and below one where none says that there is no effect, or off or a tag does further down.
func withoutEffect(path string, v reflect.Value, off map[string]bool, none bool) (paths []string) {
	none = none || off[path]
	child := func(name string, v reflect.Value, none bool) {
		if path != "" {
			name = path + "." + name
		}
		paths = append(paths, withoutEffect(name, v, off, none)...)
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() {
			return withoutEffect(path, v.Elem(), off, none)
		}
		return nil
	case reflect.Map:
		keys := slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
		for _, key := range keys {
			child(key.String(), v.MapIndex(key), none)
		}
		return paths
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[metav1.Duration]() {
			break
		}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if usual := field.Tag.Get("unless"); name == "" || usual != "" && asText(v.Field(i)) == usual {
				continue
			}
			child(name, v.Field(i), none || field.Tag.Get("effect") == "none")
		}
		return paths
	}
	if none && !empty(v) {
		return []string{path}
	}
	return nil
}

func asText(v reflect.Value) string {
	v = reflect.Indirect(v)
	if !v.IsValid() {
		return ""
	}
	if d, ok := v.Interface().(metav1.Duration); ok {
		return d.Duration.String()
	}
	return fmt.Sprint(v)
}

// empty reports whether a value asks for nothing: files written by programs have all fields.
func empty(v reflect.Value) bool {
	if v.Kind() == reflect.Slice {
		return v.Len() == 0
	}
	return v.IsZero() || v.Kind() == reflect.String && slices.Contains([]string{"0", "0s"}, v.String())
}
