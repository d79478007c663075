package az

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jmespath/go-jmespath"

	"packetwalk.dev/internal/base/termsafe"
)

// formats are the values of --output.
var formats = []string{"json", "jsonc", "none", "table", "tsv"}

// write prints a result as az does (its library knack, output.py), in its own table where it has one and --query has not made something
// else of it. A result that is nothing prints nothing.
func write(w io.Writer, result any, own *table, o options) error {
	if o.query != "" && result != nil {
		var err error
		if result, err = o.search(result); err != nil {
			return err
		}
		own = nil
	}
	if result == nil || o.format == "none" {
		return nil
	}
	var text string
	switch {
	case o.format == "table" && own != nil:
		text = own.set(result)
	case o.format == "table":
		text = plainTable(result, o.query)
	case o.format == "tsv":
		text = tsv(result, o.query)
	default:
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(result); err != nil {
			return fmt.Errorf("encode the result: %w", err)
		}
		text = b.String()
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// plainTable has a column for each field that holds a plain value, as az makes it: sorted without a query, in the query's order with one.
func plainTable(result any, query string) string {
	items, ok := result.([]any)
	if !ok {
		items = []any{result}
	}
	var headers []string
	var rows []map[string]string
	for _, item := range items {
		names, row := tableRow(item, query)
		for _, n := range names {
			if !slices.Contains(headers, n) {
				headers = append(headers, n)
			}
		}
		rows = append(rows, row)
	}
	if len(headers) == 0 {
		return ""
	}
	return layOut(headers, rows)
}

// search applies --query.
func (o options) search(result any) (any, error) {
	query, err := jmespath.Compile(pythonQuery(o.query))
	if err != nil {
		return nil, usage("argument --query: invalid jmespath_type value: '%s': %w", o.query, err)
	}
	if result, err = query.Search(result); err != nil {
		return nil, usage("argument --query: '%s': %w", o.query, err)
	}
	return result, nil
}

// hidden are the fields that az's tables leave out.
var hidden = []string{"id", "type", "etag", "revision"}

// tableRow gives an item's columns in order, and their values.
func tableRow(item any, query string) ([]string, map[string]string) {
	row := map[string]string{}
	var names []string
	switch item := item.(type) {
	case object:
		for _, k := range orderedKeys(item, query) {
			if v := item[k]; v != nil && isPlain(v) && !slices.Contains(hidden, k) {
				h := k
				if k != "" {
					h = strings.ToUpper(k[:1]) + k[1:]
				}
				names, row[h] = append(names, h), plain(v)
			}
		}
	case []any:
		for i, v := range item {
			h := "Column" + strconv.Itoa(i+1)
			names, row[h] = append(names, h), plain(v)
		}
	default:
		names, row["Result"] = []string{"Result"}, plain(item)
	}
	return names, row
}

func isPlain(v any) bool {
	switch v.(type) {
	case object, []any:
		return false
	}
	return true
}

// plain returns a value as Python's str gives it.
func plain(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case bool:
		if v {
			return "True"
		}
		return "False"
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case string:
		return v
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// layOut formats a table as Python's tabulate does in its format "simple": two spaces between columns, and headers two wider than their
// text. A cell stays on its line, whatever characters a user has put into a name.
func layOut(headers []string, rows []map[string]string) string {
	for _, r := range rows {
		for h, text := range r {
			r[h] = termsafe.Text(text)
		}
	}
	widths := make([]int, len(headers))
	for i, h := range headers {
		widths[i] = utf8.RuneCountInString(h) + 2
		for _, r := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[h]))
		}
	}
	var b strings.Builder
	line := func(cell func(i int) string) {
		var l strings.Builder
		for i := range headers {
			if i > 0 {
				l.WriteString("  ")
			}
			text := cell(i)
			l.WriteString(text + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)))
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	line(func(i int) string { return headers[i] })
	line(func(i int) string { return strings.Repeat("-", widths[i]) })
	for _, r := range rows {
		line(func(i int) string { return r[headers[i]] })
	}
	return b.String()
}

// tsv has a line for each element and a tab between values; in place of a list it has its length, of an object nothing.
func tsv(result any, query string) string {
	items, ok := result.([]any)
	if !ok {
		items = []any{result}
	}
	var b strings.Builder
	for _, item := range items {
		var cells []string
		switch item := item.(type) {
		case object:
			for _, k := range orderedKeys(item, query) {
				cells = append(cells, tsvCell(item[k]))
			}
		case []any:
			for _, v := range item {
				cells = append(cells, tsvCell(v))
			}
		case bool:
			cells = []string{strings.ToLower(plain(item))}
		default:
			cells = []string{tsvCell(item)}
		}
		b.WriteString(strings.Join(cells, "\t") + "\n")
	}
	return b.String()
}

func tsvCell(v any) string {
	switch v := v.(type) {
	case []any:
		return strconv.Itoa(len(v))
	case object:
		return ""
	}
	return termsafe.Text(plain(v))
}

// orderedKeys gives an object's keys in the order in which the query names them ("{Name: name, Port: port}"), the others after, sorted.
func orderedKeys(o object, query string) []string {
	at := map[string]int{}
	keys := make([]string, 0, len(o))
	for k := range o {
		keys = append(keys, k)
		at[k] = len(query)
		if m := regexp.MustCompile(`\b` + regexp.QuoteMeta(k) + `"?\s*:`).FindStringIndex(query); m != nil {
			at[k] = m[0]
		}
	}
	sort.Slice(keys, func(i, j int) bool {
		if at[keys[i]] != at[keys[j]] {
			return at[keys[i]] < at[keys[j]]
		}
		return keys[i] < keys[j]
	})
	return keys
}
