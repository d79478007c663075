// Command claims (tools/claims) runs the tests of test/claims and prints the tables of all claims, the articles' and those about AKS of today: pass, FAIL, skipped or no test.
//
//	go run ./tools/claims [FLAGS OF go test]
//
// It ends with status 1 when a claim has no test, or its test failed, was skipped, or could not be built. It drives the go command and
// imports nothing internal.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"packetwalk.dev/test/claims"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "claims:", err)
		os.Exit(1)
	}
}

func run(flags []string, stdout, stderr io.Writer) error {
	articles, today := claims.Articles(), claims.Today()
	only := "-run=" + pattern(slices.Concat(articles, today))
	cmd := exec.Command("go", slices.Concat([]string{"test", "-json", "-count=1", only}, flags, []string{"./test/claims"})...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	r, readErr := read(out, stderr)
	waitErr := cmd.Wait()
	bad := r.table(stdout, "of the articles", articles) + r.table(stdout, "about AKS of today", today)
	switch {
	case readErr != nil:
		return readErr
	case bad > 0:
		return fmt.Errorf("%d claims do not hold", bad)
	case waitErr != nil:
		return fmt.Errorf("run go test: %w", waitErr)
	}
	return nil
}

// pattern returns what -run takes for the tests of claims: the package has others.
func pattern(all []claims.Claim) string {
	var names []string
	for _, c := range all {
		names = append(names, c.Test())
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// event is a line of go test -json (go doc test2json).
type event struct {
	Action, Test, Output string
	Elapsed              float64 // seconds
}

// result is how a test ended, and what it said.
type result struct {
	action  string // pass, fail, skip; empty while it runs
	seconds float64
	output  strings.Builder
}

// results are those of whole tests, not of their subtests, by name.
type results map[string]*result

// read takes the events as they come, and says on progress how each test ended.
func read(events io.Reader, progress io.Writer) (results, error) {
	r := results{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil { // not from a test: an error of the build
			fmt.Fprintln(progress, lines.Text())
			continue
		}
		r.take(e, progress)
	}
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("read what go test says: %w", err)
	}
	return r, nil
}

func (r results) take(e event, progress io.Writer) {
	name, _, isSub := strings.Cut(e.Test, "/")
	if name == "" {
		if e.Action == "output" || e.Action == "build-output" {
			fmt.Fprint(progress, e.Output)
		}
		return
	}
	t := r[name]
	if t == nil {
		t = &result{}
		r[name] = t
	}
	switch e.Action {
	case "output":
		t.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		if isSub {
			return
		}
		t.action, t.seconds = e.Action, e.Elapsed
		fmt.Fprintf(progress, "%s %s (%.1f s)\n", e.Action, name, e.Elapsed)
		if e.Action != "pass" {
			fmt.Fprint(progress, t.output.String())
		}
	}
}

// table prints claims, and returns how many did not pass: a claim without a test is one of them.
func (r results) table(w io.Writer, which string, all []claims.Claim) int {
	passed, bad := 0, 0
	for _, c := range all {
		state := "no test"
		if t := r[c.Test()]; t == nil {
			bad++
		} else {
			switch t.action {
			case "pass":
				state = "pass"
				passed++
			case "skip":
				state = "skipped"
				bad++
			default:
				state = "FAIL"
				bad++
			}
		}
		fmt.Fprintf(w, "%-4s %-13s  %s\n", c.ID, state, c.Title)
	}
	fmt.Fprintf(w, "%d claims %s: %d pass, %d do not\n", len(all), which, passed, bad)
	return bad
}
