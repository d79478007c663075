package aksimport

import (
	"bytes"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/lab/cluster"
)

// document is a cluster.yaml as nodes with comments.
type document struct{ root *yaml.Node }

func newDocument(c *cluster.Cluster) *document { return &document{encode(reflect.ValueOf(*c))} }

// encode returns a value with the fields that are set, in the order of the type.
func encode(v reflect.Value) *yaml.Node {
	switch x := v.Interface().(type) {
	case netip.Prefix:
		return scalar("!!str", x.String())
	case netip.Addr:
		return scalar("!!str", x.String())
	}
	switch v.Kind() {
	case reflect.Pointer:
		return encode(v.Elem())
	case reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && !v.Field(i).IsZero() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				n.Content = append(n.Content, scalar("!!str", name), encode(v.Field(i)))
			}
		}
		return n
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			n.Content = append(n.Content, encode(v.Index(i)))
		}
		if k := v.Type().Elem().Kind(); k == reflect.String || v.Type().Elem() == reflect.TypeFor[netip.Prefix]() {
			n.Style = yaml.FlowStyle
		}
		return n
	case reflect.Map:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), byText) {
			n.Content = append(n.Content, scalar("!!str", key.String()), encode(v.MapIndex(key)))
		}
		return n
	case reflect.Bool:
		return scalar("!!bool", strconv.FormatBool(v.Bool()))
	case reflect.Int:
		return scalar("!!int", strconv.FormatInt(v.Int(), 10))
	}
	return scalar("!!str", v.String())
}

func byText(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }

func scalar(tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
}

// text returns the document as a file.
func (d *document) text() ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(d.root); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// step is a part of a path: a field, or in brackets an index or a key, which may have dots.
var step = regexp.MustCompile(`\[[^\]]*\]|[^.\[\]]+`)

// steps returns the parts of a path, without brackets.
func steps(path string) []string {
	parts := step.FindAllString(path, -1)
	for i, p := range parts {
		if strings.HasPrefix(p, "[") {
			parts[i] = p[1 : len(p)-1]
		}
	}
	return parts
}

// parent returns the path of what an element or a field is in.
func parent(path string) string {
	parts := step.FindAllString(path, -1)
	last := parts[len(parts)-1]
	return strings.TrimSuffix(strings.TrimSuffix(path, last), ".")
}

// comment writes a line above what stands at a path, or above the nearest thing that it would stand in.
func (d *document) comment(path, format string, values ...any) {
	n, at := d.root, (*yaml.Node)(nil)
	for _, s := range steps(path) {
		i := index(n, s)
		if i < 0 {
			break
		}
		if at = n.Content[i]; n.Kind == yaml.MappingNode {
			at = n.Content[i-1] // the key
		}
		n = n.Content[i]
	}
	if at == nil {
		at = d.root
	}
	line := "# " + termsafe.Text(fmt.Sprintf(format, values...))
	if at.HeadComment == "" {
		at.HeadComment = line
	} else if !strings.Contains(at.HeadComment+"\n", line+"\n") {
		at.HeadComment += "\n" + line
	}
}

// index returns where a field's value, or an element, is among a node's contents; -1 for nowhere.
func index(n *yaml.Node, s string) int {
	if n.Kind == yaml.SequenceNode {
		if i, err := strconv.Atoi(s); err == nil && i < len(n.Content) {
			return i
		}
		return -1
	}
	for i := 1; i < len(n.Content); i += 2 {
		if n.Content[i-1].Value == s {
			return i
		}
	}
	return -1
}

// find returns the node at a path; nil for none.
func (d *document) find(path string) *yaml.Node {
	n := d.root
	for _, s := range steps(path) {
		i := index(n, s)
		if i < 0 {
			return nil
		}
		n = n.Content[i]
	}
	return n
}

// remove takes out what stands at a path, and reports whether something did.
func (d *document) remove(path string) bool {
	parts := steps(path)
	if len(parts) == 0 {
		return false
	}
	n := d.find(parent(path))
	if n == nil {
		return false
	}
	i := index(n, parts[len(parts)-1])
	switch {
	case i < 0:
		return false
	case n.Kind == yaml.SequenceNode:
		n.Content = append(n.Content[:i], n.Content[i+1:]...)
	default:
		n.Content = append(n.Content[:i-1], n.Content[i+1:]...)
	}
	return true
}

// name returns what the element at a path is called, else its value or values, those of maps with their key.
func (d *document) name(path string) string {
	n := d.find(path)
	if n == nil {
		return ""
	}
	if i := index(n, "name"); n.Kind == yaml.MappingNode && i > 0 {
		return n.Content[i].Value
	}
	value := n.Value
	if p := d.find(parent(path)); p.Kind == yaml.MappingNode && strings.HasSuffix(path, "]") {
		parts := steps(path)
		value = parts[len(parts)-1] + "=" + value
	}
	values := []string{value}
	for _, e := range n.Content {
		values = append(values, e.Value)
	}
	return strings.TrimSpace(strings.Join(values, " "))
}
