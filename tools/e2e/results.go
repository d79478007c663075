package main

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/base/termsafe"
	"sigs.k8s.io/yaml"
)

// causes says of specs why they do not pass.
type causes map[string]string

func readCauses(file string) (all causes, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

// A spec is one that ran, and how it ended.
type spec struct {
	name    string
	state   string // passed, skipped, or what else became of it: failed, timedout, panicked, …
	seconds float64
	why     string // the first line of what it says of its failure, or why it skipped itself
}

func (s spec) failed() bool { return s.state != "passed" && s.state != "skipped" }

// results are the specs that ran, by name, and all that the suite has.
type results struct {
	specs   []spec
	suite   map[string]bool
	seconds float64
	stopped string // why the suite did not come to its end
}

// The parts of ginkgo's JUnit that are read (github.com/onsi/ginkgo/v2/reporters, junit_report.go).
type junit struct {
	Suites []struct {
		Time       float64 `xml:"time,attr"`
		Properties []struct {
			Name  string `xml:"name,attr"`
			Value string `xml:"value,attr"`
		} `xml:"properties>property"`
		Cases []junitCase `xml:"testcase"`
	} `xml:"testsuite"`
}

type junitCase struct {
	Name    string  `xml:"name,attr"`
	Status  string  `xml:"status,attr"`
	Time    float64 `xml:"time,attr"`
	Failure string  `xml:"failure"`
	Error   string  `xml:"error"`
	Skipped *struct {
		Message string `xml:"message,attr"`
	} `xml:"skipped"`
}

// readResults reads a JUnit file of the suite.
func readResults(file string) (results, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return results{}, fmt.Errorf("the suite left no results: %w", err)
	}
	var j junit
	if err := xml.Unmarshal(text, &j); err != nil {
		return results{}, fmt.Errorf("%s: %w", file, err)
	}
	r := results{suite: map[string]bool{}}
	for _, suite := range j.Suites {
		r.seconds += suite.Time
		for _, p := range suite.Properties {
			if p.Name == "SpecialSuiteFailureReason" {
				r.stopped += p.Value
			}
		}
		for _, c := range suite.Cases {
			r.add(c)
		}
	}
	slices.SortFunc(r.specs, func(a, b spec) int { return cmp.Compare(a.name, b.name) })
	return r, nil
}

// add takes a case: a spec unless it was not asked for, and what the suite does before and after all specs only where that failed.
func (r *results) add(c junitCase) {
	name, isSpec := strings.CutPrefix(c.Name, "[It] ")
	if isSpec {
		r.suite[name] = true
	}
	s := spec{name: name, state: c.Status, seconds: c.Time, why: firstLine(c.Failure + c.Error)}
	switch {
	case c.Skipped != nil:
		reason, itself := strings.CutPrefix(c.Skipped.Message, "skipped - ")
		if !itself {
			return
		}
		s.why = firstLine(reason)
	case !isSpec && !s.failed():
		return
	}
	r.specs = append(r.specs, s)
}

// firstLine returns the begin of a failure's text, which is ginkgo's "[FAILED] message" with the place after it.
func firstLine(text string) string {
	text = strings.TrimSpace(text)
	if _, rest, ok := strings.Cut(text, "] "); ok && strings.HasPrefix(text, "[") {
		text = rest
	}
	line, _, _ := strings.Cut(text, "\n")
	return termsafe.Text(line)
}

// states counts the specs, by how they ended.
func (r results) states() map[string]int {
	n := map[string]int{}
	for _, s := range r.specs {
		n[s.state]++
	}
	return n
}

// summary returns one line: "47 specs: 45 passed, 2 failed".
func (r results) summary() string {
	n := r.states()
	var parts []string
	for _, state := range slices.SortedFunc(maps.Keys(n), func(a, b string) int { return cmp.Or(n[b]-n[a], cmp.Compare(a, b)) }) {
		parts = append(parts, fmt.Sprintf("%d %s", n[state], state))
	}
	return fmt.Sprintf("%d specs: %s", len(r.specs), strings.Join(parts, ", "))
}

// table prints each spec that did not pass with the first line of its failure and the cause that is known, and the numbers.
func (r results) table(w io.Writer, known causes) {
	for _, s := range r.specs {
		if s.state == "passed" {
			continue
		}
		fmt.Fprintf(w, "\n%s after %.1f s: %s\n    %s\n", s.state, s.seconds, termsafe.Text(s.name), s.why)
		if cause := known[s.name]; cause != "" {
			fmt.Fprintf(w, "    cause: %s\n", cause)
		}
	}
	fmt.Fprintf(w, "\n%s in %s\n", r.summary(), time.Duration(r.seconds*float64(time.Second)).Round(time.Second))
}

// judge compares the results with the known causes: each failure has one, and none has a cause that passed, or is not in the suite.
func (r results) judge(known causes) error {
	if len(r.specs) == 0 {
		return errors.New("no spec ran: see -focus and -skip")
	}
	var errs []error
	for _, s := range r.specs {
		switch known[s.name] {
		case "":
			if s.failed() {
				errs = append(errs, fmt.Errorf("without a cause in %s: %s", causesFile, termsafe.Text(s.name)))
			}
		default:
			if !s.failed() {
				errs = append(errs, fmt.Errorf("%s, take its cause out of %s: %s", s.state, causesFile, termsafe.Text(s.name)))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !r.suite[name] {
			errs = append(errs, fmt.Errorf("no such spec, take its cause out of %s: %s", causesFile, name))
		}
	}
	return errors.Join(errs...)
}
