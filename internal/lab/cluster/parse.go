package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is the most bytes that Parse reads: a hundred times what the largest cluster needs.
const maxFile = 1 << 20

// Parse reads a cluster.yaml, fills in the defaults and validates the whole, as Validate does with apps. It gives every error at once; the
// cluster is nil when there is any. It never panics, whatever the bytes are. The machines of a cluster that runs stay where they are
// placed, and new ones get addresses that are free; placed is nil for a new cluster.
func Parse(placed Placement, data []byte, apps ...string) (*Cluster, Errors) {
	c := &Cluster{placed: placed}
	d, err := c.decode(data)
	if err != nil {
		return nil, Errors{{Message: err.Error(), Remedy: "write one YAML document as in examples/overlay/cluster.yaml"}}
	}
	if errs := d.merge(c.Validate(apps...)); len(errs) > 0 {
		return nil, errs
	}
	return c, nil
}

// decode fills the cluster from a file, and with defaults. What cannot be read of a document is among the decoder's errors.
func (c *Cluster) decode(data []byte) (*decoder, error) {
	doc, err := document(data)
	if err != nil {
		return nil, err
	}
	d := &decoder{lines: map[string]int{}}
	if doc != nil {
		d.value(doc, reflect.ValueOf(c).Elem(), "")
	}
	c.setDefaults()
	return d, nil
}

// document gives the root of the only document in data, nil when there is none or it is empty.
func document(data []byte) (*yaml.Node, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("the file has %d bytes, more than %d", len(data), maxFile)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document")
	}
	if len(doc.Content) != 1 {
		return nil, nil
	}
	return doc.Content[0], nil
}

// decoder fills Go values from YAML nodes. Unlike the yaml package's own decoder it goes on after an error, knows each value's path and
// line, refuses unknown and repeated fields, and takes an unquoted 1.11 for the text that it is.
type decoder struct {
	lines  map[string]int // of each path that the file gives
	failed []string       // the paths whose value is not what the file says
	errs   Errors
}

// add complains about the value at path, which stays what it was: validation then has nothing to say of it.
func (d *decoder) add(n *yaml.Node, path, remedy, format string, args ...any) {
	d.failed = append(d.failed, path)
	d.note(n, path, remedy, format, args...)
}

func (d *decoder) note(n *yaml.Node, path, remedy, format string, args ...any) {
	d.errs = append(d.errs, Error{Path: path, Line: n.Line, Remedy: remedy, Message: fmt.Sprintf(format, args...)})
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode { // the types do not nest in themselves, so neither can this
		n = n.Alias
	}
	d.lines[path] = n.Line
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	switch p := v.Addr().Interface().(type) {
	case *netip.Prefix:
		parsed(d, n, p, path, "an address range", "10.13.0.0/16", netip.ParsePrefix)
		return
	case *netip.Addr:
		parsed(d, n, p, path, "an address", "10.13.1.4", netip.ParseAddr)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		given := reflect.New(v.Type().Elem())
		failed := len(d.failed)
		d.value(n, given.Elem(), path)
		if len(d.failed) == failed {
			v.Set(given)
		}
	case reflect.Struct:
		d.mapping(n, v, path)
	case reflect.Slice:
		d.sequence(n, v, path)
	case reflect.Map:
		d.labels(n, v, path)
	case reflect.String:
		if d.scalar(n, path, "text", "!!str", "!!int", "!!float") {
			v.SetString(n.Value)
		}
	case reflect.Bool:
		if d.scalar(n, path, "true or false", "!!bool") {
			v.SetBool(strings.EqualFold(n.Value, "true"))
		}
	case reflect.Int:
		if d.scalar(n, path, "a whole number", "!!int") {
			i, err := strconv.Atoi(n.Value)
			if err != nil {
				d.add(n, path, "write it with decimal digits", "%q is not a whole number", n.Value)
				return
			}
			v.SetInt(int64(i))
			if i == 0 { // 0 would read as left out
				d.add(n, path, "leave the field out for the default", "0 is not possible here")
			}
		}
	default:
		panic(fmt.Sprintf("field %s has type %s, which no file can fill", path, v.Type()))
	}
}

// scalar says whether n is a plain value with one of the tags, and complains when not.
func (d *decoder) scalar(n *yaml.Node, path, want string, tags ...string) bool {
	if n.Kind == yaml.ScalarNode && slices.Contains(tags, n.Tag) {
		return true
	}
	d.add(n, path, "", "%s expected, not %s", want, describe(n))
	return false
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%q", n.Value)
}

// parsed sets into to what the scalar says; example is a value that is right.
func parsed[T any](d *decoder, n *yaml.Node, into *T, path, want, example string, parse func(string) (T, error)) {
	if !d.scalar(n, path, want, "!!str") {
		return
	}
	v, err := parse(n.Value)
	if err != nil {
		d.add(n, path, "write it as "+example, "%q is not %s", n.Value, want)
		return
	}
	*into = v
}

func (d *decoder) sequence(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.add(n, path, "put a - before each element", "a list expected, not %s", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, e := range n.Content {
		d.value(e, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.add(n, path, "", "a mapping of fields expected, not %s", describe(n))
		return
	}
	fields, names := fieldsOf(v.Type())
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		index, known := fields[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || !known:
			d.note(key, at, suggest(key.Value, names, "the fields here are "), "unknown field")
		case seen[key.Value]:
			d.note(key, at, "keep one of them", "the field is there twice")
		default:
			seen[key.Value] = true
			d.value(val, v.Field(index), at)
		}
	}
}

// labels sets a map of text to text, nil where it is empty.
func (d *decoder) labels(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.add(n, path, "write it as {name: value}", "a mapping expected, not %s", describe(n))
		return
	}
	all := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, at := n.Content[i], fmt.Sprintf("%s[%s]", path, n.Content[i].Value)
		if _, twice := all[key.Value]; twice {
			d.note(key, at, "keep one of them", "the name is there twice")
			continue
		}
		var value string
		if d.scalar(key, at, "text", "!!str", "!!int", "!!float") {
			d.value(n.Content[i+1], reflect.ValueOf(&value).Elem(), at)
			all[key.Value] = value
		}
	}
	if len(all) > 0 {
		v.Set(reflect.ValueOf(all))
	}
}

// fieldsOf maps the JSON names of a struct's fields to their indices, and lists the names in the struct's order.
func fieldsOf(t reflect.Type) (map[string]int, []string) {
	fields := map[string]int{}
	var names []string
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			continue
		}
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields[name] = i
		names = append(names, name)
	}
	return fields, names
}

func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}

// merge gives the decoder's errors and those of the validation that are not mere consequences of them, with lines, in the file's order.
func (d *decoder) merge(validation Errors) Errors {
	all := d.errs
	for _, e := range validation {
		if !slices.ContainsFunc(d.failed, func(f string) bool { return isWithin(e.Path, f) }) {
			e.Line = d.line(e.Path)
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b Error) int { return a.Line - b.Line })
	return all
}

// isWithin reports whether path is field or a part of it.
func isWithin(path, field string) bool {
	if field == "" {
		return true
	}
	rest, ok := strings.CutPrefix(path, field)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// line returns the line of path, or of its parent when the file leaves it out.
func (d *decoder) line(path string) int {
	for {
		if n, ok := d.lines[path]; ok {
			return n
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return d.lines[""]
		}
		path = path[:i]
	}
}

// suggest returns the remedy for an unknown word: the nearest known one, or all of them.
func suggest(word string, known []string, all string) string {
	best, least := "", max(2, len(word)/3)+1
	for _, k := range known {
		if n := distance(strings.ToLower(word), strings.ToLower(k)); n < least {
			best, least = k, n
		}
	}
	if best != "" {
		return "write " + best
	}
	return all + strings.Join(known, ", ")
}

// suggestName returns the remedy for the name of a resource that is missing: the nearest of those that have a valid name, or to add it.
func suggestName(name string, known []string, add string) string {
	known = slices.DeleteFunc(slices.Clone(known), func(s string) bool { return !azureName.MatchString(s) })
	if len(known) == 0 {
		return add
	}
	return suggest(name, known, add+", or write one of ")
}

// distance returns Levenshtein's distance: the least number of letters to insert, delete or replace between a and b.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
