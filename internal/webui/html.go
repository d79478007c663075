package webui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"slices"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/answer/picture"
	"packetwalk.dev/internal/base/termsafe"
)

// bundle holds the page, as tools/ui builds it of the sources in ui.
//
//go:embed bundle
var bundle embed.FS

// MostHTML limits the bytes of a saved page. Beyond it the steps of outcomes are left out, the last ones first.
const MostHTML = 300_000

// mustRead reads a file of the bundle, which is part of the program.
func mustRead(name string) []byte {
	data, err := bundle.ReadFile("bundle/" + name)
	if err != nil {
		panic(err)
	}
	return data
}

// HTML writes the answer as one page that needs no server and no network.
func (a *Answer) HTML(w io.Writer) error {
	script, style := mustRead("page.js"), mustRead("page.css")
	const around = 2000 // the page's own elements
	data, err := a.data(MostHTML - len(script) - len(style) - around)
	if err != nil {
		return err
	}
	policy := fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'",
		digest(script), digest(style))
	_, err = fmt.Fprintf(w, `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="%s">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<style>%s</style>
</head>
<body>
<div id="app"></div>
<script type="application/json" id="answer">%s</script>
<script>%s</script>
</body>
</html>
`, policy, html.EscapeString(termsafe.Text("packetwalk: "+a.Question.From+" → "+a.Question.To)), style, data, script)
	return err
}

// digest returns the source expression of an inline script or style (CSP Level 3, 2.3.1).
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// data returns the answer as JSON for a script element, in at most n bytes where enough can be left out. json.HTMLEscape writes <, > and &
// as escapes, so no text in it ends the element.
func (a *Answer) data(n int) ([]byte, error) {
	all := *a
	for {
		data, err := json.Marshal(&all)
		if err != nil {
			return nil, err
		}
		var escaped bytes.Buffer
		json.HTMLEscape(&escaped, data)
		if escaped.Len() <= n || !all.shorten() {
			return escaped.Bytes(), nil
		}
		if all.Walk, err = json.Marshal(&all.document); err != nil {
			return nil, err
		}
	}
}

// shorten leaves out the steps of the second half of the outcomes that have any. Where only one has, it leaves out the second half of the
// outcomes. It reports whether there was anything to leave out.
func (a *Answer) shorten() bool {
	outcomes := slices.Clone(a.document.Outcomes)
	whole := 0
	for whole < len(outcomes) && len(outcomes[whole].Results) > 0 {
		whole++
	}
	switch {
	case whole > 1:
		a.Ways = slices.Clone(a.Ways)
		for i := whole / 2; i < whole; i++ {
			o := &outcomes[i]
			*o = explain.OutcomeDoc{Number: o.Number, Probability: o.Probability, ProbabilityDecimal: o.ProbabilityDecimal, Short: o.Short, End: o.End,
				Sees: explain.SummaryDoc{SrcIP: o.Sees.SrcIP, SrcPort: o.Sees.SrcPort, Translated: o.Sees.Translated, Text: o.Sees.Text}}
			if i < len(a.Ways) {
				a.Ways[i] = OutcomeWay{There: picture.Way{Points: []picture.Point{}, Stops: []int{}}}
			}
		}
	case len(outcomes) > 1:
		outcomes = outcomes[:len(outcomes)/2]
		a.document.More = true
	default:
		return false
	}
	a.document.Outcomes = outcomes
	return true
}
