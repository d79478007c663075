package cluster

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/testing/goldentest"
)

// TestReference holds docs/cluster-yaml.md to the types of this package; -update writes it.
func TestReference(t *testing.T) {
	const path = "../../../docs/cluster-yaml.md"
	r := readTypes(t)
	var page strings.Builder
	page.WriteString("# cluster.yaml: every field\n\n" + wrap("", "",
		"Every field is optional unless it says that it is required. [commands.md](commands.md#clusteryaml) has "+
			"examples. The types in `internal/lab/cluster` generate this page."))
	r.section(&page, "", reflect.TypeFor[Cluster]())
	goldentest.File(t, path, page.String())
}

// types are the doc comments of the package's types and fields, and the values of its string types.
type types struct {
	t      *testing.T
	docs   map[string]string   // of "Type" and "Type.Field"
	values map[string][]string // of string types, in the order of the source
}

func readTypes(t *testing.T) *types {
	t.Helper()
	r := &types{t, map[string]string{}, map[string][]string{}}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok {
				return true
			}
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					r.readType(s, d.Doc)
				case *ast.ValueSpec:
					r.readValue(s)
				}
			}
			return false
		})
	}
	return r
}

func (r *types) readType(s *ast.TypeSpec, doc *ast.CommentGroup) {
	r.docs[s.Name.Name] = doc.Text()
	body, ok := s.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range body.Fields.List {
		for _, name := range f.Names {
			r.docs[s.Name.Name+"."+name.Name] = f.Doc.Text() + f.Comment.Text()
		}
	}
}

func (r *types) readValue(s *ast.ValueSpec) {
	name, ok := s.Type.(*ast.Ident)
	if !ok {
		return
	}
	for _, v := range s.Values {
		if literal, ok := v.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			text, _ := strconv.Unquote(literal.Value)
			r.values[name.Name] = append(r.values[name.Name], text)
		}
	}
}

// section writes the fields of a struct, and then the sections of the structs in it.
func (r *types) section(w *strings.Builder, path string, of reflect.Type) {
	title := path
	if title == "" {
		title = "The file"
	}
	fmt.Fprintf(w, "\n## %s\n\n", title)
	if doc := sentence(r.docs[of.Name()], of.Name()); doc != "" {
		w.WriteString(wrap("", "", doc) + "\n")
	}
	var below []func()
	for f := range of.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" {
			continue
		}
		doc := r.docs[of.Name()+"."+f.Name]
		kind, inner, suffix := r.kind(f.Type)
		at := strings.TrimPrefix(path+"."+tag, ".") + suffix
		if inner != nil {
			doc = sentence(doc, f.Name) + fmt.Sprintf(" See [%s](#%s).", at, anchor(at))
			below = append(below, func() { r.section(w, at, inner) })
		} else if doc == "" {
			r.t.Errorf("%s.%s has no doc comment", of.Name(), f.Name)
		}
		w.WriteString(wrap("- ", "  ", fmt.Sprintf("**`%s`** (%s): %s", tag, kind, sentence(doc, f.Name))))
	}
	for _, write := range below {
		write()
	}
}

// kind returns how a field is written, and the struct that it holds, if any.
func (r *types) kind(of reflect.Type) (words string, inner reflect.Type, suffix string) {
	switch name := of.Name(); {
	case of.Kind() == reflect.Pointer: // which tells a field that is left out
		return r.kind(of.Elem())
	case of.Kind() == reflect.Slice:
		words, inner, _ := r.kind(of.Elem())
		return "list of " + words, inner, "[]"
	case len(r.values[name]) > 0:
		return "`" + strings.Join(r.values[name], "`, `") + "`", nil, ""
	case name == "Prefix":
		return "CIDR", nil, ""
	case name == "Addr":
		return "address", nil, ""
	case of.Kind() == reflect.Map:
		return "map of strings", nil, ""
	case of.Kind() == reflect.Struct:
		return "object", of, ""
	case of.Kind() == reflect.Bool:
		return "`true` or `false`", nil, ""
	case of.Kind() == reflect.Int:
		return "number", nil, ""
	}
	return "string", nil, ""
}

// sentence returns a doc comment as the text behind a field's name: without the name of the Go identifier.
func sentence(doc, name string) string {
	text := strings.Join(strings.Fields(doc), " ")
	for _, start := range []string{" is ", " are "} {
		text = strings.TrimPrefix(text, name+start)
	}
	if text == "" {
		return ""
	}
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

func anchor(title string) string {
	return strings.NewReplacer(".", "", "[", "", "]", "").Replace(strings.ToLower(title))
}

// wrap breaks a text at 120 columns.
func wrap(first, rest, text string) string {
	var out strings.Builder
	line := first
	for i, word := range strings.Fields(text) {
		if i > 0 && len([]rune(line))+1+len([]rune(word)) > 120 {
			out.WriteString(line + "\n")
			line = rest + word
			continue
		}
		if i > 0 {
			line += " "
		}
		line += word
	}
	return out.String() + line + "\n"
}

func TestWrap(t *testing.T) {
	got := wrap("- ", "  ", strings.Repeat("word ", 30))
	want := "- " + strings.TrimSpace(strings.Repeat("word ", 23)) + "\n  " + strings.TrimSpace(strings.Repeat("word ", 7)) + "\n"
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
