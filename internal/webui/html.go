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

	"packetwalk.dev/internal/base/termsafe"
)

// bundle holds the page, as tools/ui builds it of the sources in ui.
//
//go:embed bundle
var bundle embed.FS

// MostHTML is the most bytes that a saved page should have. Beyond it the steps of outcomes are left out, the last ones first.
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

// data returns the answer as JSON for a script element, in at most n bytes where steps can be left out. encoding/json writes <, > and &
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
		if escaped.Len() <= n || !all.dropSteps() {
			return escaped.Bytes(), nil
		}
	}
}

// dropSteps leaves out the steps of the second half of the outcomes that have any, and reports whether there were more than one.
func (a *Answer) dropSteps() bool {
	outcomes := slices.Clone(a.document.Outcomes)
	kept := 0
	for kept < len(outcomes) && len(outcomes[kept].Results) > 0 {
		kept++
	}
	if kept < 2 {
		return false
	}
	for i := kept / 2; i < kept; i++ {
		outcomes[i].Results, outcomes[i].Reply = nil, nil
	}
	a.document.Outcomes = outcomes
	walk, err := json.Marshal(&a.document)
	if err != nil {
		return false
	}
	a.Walk = walk
	return true
}
