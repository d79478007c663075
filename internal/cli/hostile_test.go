//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/testing/capturetest"
)

// hostile has what a terminal, or a reader, may take for something else.
const hostile = "\x1b]0;x\x07\r\nforged: \u202egnp\x1b[2J\u009b2J\x7f"

var processName = regexp.MustCompile(`"process": ?"`)

// hostileCapture writes a capture of the world of the articles, in which the names of a pod, of an interface and of processes, and comments
// of rules are hostile.
func hostileCapture(t *testing.T) (file string) {
	t.Helper()
	c := capturetest.Open(t, "../capture/testdata/world-a.pwcap.tar.gz")
	inJSON, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	quoted := strings.Trim(string(inJSON), `"`)
	for file, list := range c.Lists {
		c.Lists[file] = []byte(strings.ReplaceAll(string(list), "whereami-", quoted+"-"))
	}
	replaced := map[string]bool{}
	for _, h := range c.Hosts {
		for file, out := range h.Outputs {
			text := strings.ReplaceAll(string(out.Data), `"eth0"`, `"e`+quoted+`"`)
			text = strings.ReplaceAll(text, "default/whereami", "default/\x1b[2J\x07\r\u202ewhereami") // a rule ends with its line
			text = processName.ReplaceAllString(text, `"process":"`+quoted+"listener-")
			replaced[file] = replaced[file] || text != string(out.Data)
			out.Data = []byte(text)
			h.Outputs[file] = out
		}
	}
	if !replaced["iptables-save.txt"] || !replaced["ip-link.json"] || !replaced[capture.ListenersFile] {
		t.Fatalf("replaced in %v", replaced)
	}
	file = filepath.Join(t.TempDir(), "hostile.pwcap.tar.gz")
	if err := os.WriteFile(file, c.Pack(t), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// onlyText fails where a text has more than printable characters and ends of lines, or a line that others forged.
func onlyText(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && (unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r)) {
			t.Errorf("%s has %U:\n%q", what, r, text)
			return
		}
	}
	if strings.Contains(text, "\nforged: ") {
		t.Errorf("%s: a line is forged:\n%s", what, text)
	}
}

// TestHostileCapture: what a capture has in its names and comments is shown with control characters escaped.
func TestHostileCapture(t *testing.T) {
	file := hostileCapture(t)
	seen := ""
	for _, args := range [][]string{
		{"--from", "internet", "--to", "svc/whereami", "-o", "text"},
		{"--from", "internet", "--to", "svc/whereami", "-o", "wide"},
		{"--from", "internet", "--to", "svc/whereami", "-o", "json"},
		{"--from", "pod/nosuch\x1b[2J", "--to", "svc/whereami"},
		{"--from", "node/aks-nodepool1-31351229-0", "--to", "127.0.0.1:10256"},
	} {
		var out, errs bytes.Buffer
		Main(append([]string{"walk", "--snapshot", file, "--at", "node/aks-nodepool1-31351229-0"}, args...),
			Streams{In: os.Stdin, Out: &out, Err: &errs})
		onlyText(t, fmt.Sprint(args), out.String())
		onlyText(t, fmt.Sprint(args, " errors"), errs.String())
		seen += out.String() + errs.String()
	}
	for _, want := range []string{`\u001b[2J`, `\u202e`, `\u0007`, "listener-"} {
		if !strings.Contains(seen, want) {
			t.Errorf("%s is nowhere:\n%s", want, seen)
		}
	}
}

// TestHostileText: so is what a pasted text has.
func TestHostileText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.txt")
	rules := "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -o eth0 -m comment --comment \"a\x1b[2J\x07\u202eb\" -j MASQUERADE\nCOMMIT\n"
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"text", "wide"} {
		var out, errs bytes.Buffer
		Main([]string{"walk", "--snapshot", file, "--at", "node", "--from", "10.0.0.1", "--to", "198.51.100.1:80", "-o", form, "--color",
			"always"},
			Streams{In: os.Stdin, Out: &out, Err: &errs})
		looks := strings.NewReplacer("\x1b[0m", "", "\x1b[1m", "", "\x1b[2m", "", "\x1b[31m", "", "\x1b[33m", "")
		onlyText(t, form, looks.Replace(out.String()))
		if form == "wide" && !strings.Contains(out.String(), `a\u001b[2J\u0007\u202eb`) || !strings.Contains(out.String(), "\x1b[1m") {
			t.Errorf("%s: %q %s", form, out.String(), errs.String())
		}
	}
}

// TestHostileTour: so is what a page has that others wrote.
func TestHostileTour(t *testing.T) {
	dir := t.TempDir()
	page := "# A title\x1b[2J\n\n## Who\x07\u202e?\n\n```console\n$ true\n```\n"
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if status := Main([]string{"tour", dir, "--print"}, Streams{In: os.Stdin, Out: &out, Err: &errs}); status != 0 {
		t.Fatalf("exit status %d: %s", status, errs.String())
	}
	onlyText(t, "the page", out.String())
	if !strings.Contains(out.String(), `\u001b[2J`) {
		t.Errorf("the title is not there:\n%s", out.String())
	}
}

// TestHostileStatus: so are the problems that a status tells, and errors.
func TestHostileStatus(t *testing.T) {
	var b bytes.Buffer
	if err := printStatus(&b, screen{}, lab.Status{Name: "a", Problems: []string{hostile}, Hosts: []lab.Host{{Name: "h", App: "\x1b[2J"}}},
		""); err != nil {
		t.Fatal(err)
	}
	onlyText(t, "status", b.String())
	b.Reset()
	var got lab.Status
	err := printStatus(&b, screen{}, lab.Status{Problems: []string{hostile}}, "json")
	if err := errors.Join(err, json.Unmarshal(b.Bytes(), &got)); err != nil {
		t.Fatal(err)
	}
	onlyText(t, "status in JSON", b.String())
	if len(got.Problems) != 1 || got.Problems[0] != hostile {
		t.Errorf("%q in JSON is read as %q", hostile, got.Problems)
	}
	b.Reset()
	conclude(errors.New("pod "+hostile), true, "", hinter{}, &b)
	if text := b.String(); strings.ContainsAny(text, "\x1b\x07\r\u202e") {
		t.Errorf("errors: %q", text)
	}
}

// TestHostileNotes: so are the notes on a capture, what tools said, the steps of a lab that starts, and what changes in its cluster.yaml.
func TestHostileNotes(t *testing.T) {
	for what, tell := range map[string]func(io.Writer){
		"a note": func(w io.Writer) {
			printCapture(w, &capture.Summary{Head: capture.Head{Notes: []string{hostile}}}, "file", 1)
		},
		"a tool's error": func(w io.Writer) {
			printCapture(w, &capture.Summary{Hosts: 1, Failed: map[string]int{hostile: 1}}, "file", 1)
		},
		"a step":   func(w io.Writer) { newProgress(w).step(lab.Step{Text: hostile}) },
		"a change": func(w io.Writer) { printPlan(w, "lab", []cluster.Change{{Path: "spec.hosts[0].app", To: hostile}}) },
	} {
		var b bytes.Buffer
		tell(&b)
		onlyText(t, what, b.String())
		if !strings.Contains(b.String(), `\u001b[2J`) {
			t.Errorf("%s is not there: %s", what, b.String())
		}
	}
}

// TestInputIsBounded: input without end is refused with the limit in the error, and exit status 2.
func TestInputIsBounded(t *testing.T) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	for what, args := range map[string][]string{
		"a file":         {"walk", "--snapshot", "/dev/zero", "--from", "10.0.0.1", "--to", "10.0.0.2"},
		"standard input": {"walk", "--snapshot", "-", "--from", "10.0.0.1", "--to", "10.0.0.2"},
	} {
		var out, errs bytes.Buffer
		if code := Main(args, Streams{In: zero, Out: &out, Err: &errs}); code != 2 || !strings.Contains(errs.String(), "more than 64 MiB") {
			t.Errorf("%s: exit status %d, %s", what, code, errs.String())
		}
	}
	if _, err := readCluster("/dev/zero", lab.Dir(t.TempDir())); err == nil || !strings.Contains(err.Error(), "more than 2 MiB") {
		t.Errorf("cluster.yaml: %v", err)
	}
}
