package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/pods/images"
)

func TestFollow(t *testing.T) {
	const output = `Running Suite: Kubernetes e2e suite - /bin/e2e
Will run 47 of 7347 specs
------------------------------
[SynchronizedBeforeSuite] PASSED [5.003 seconds]
[SynchronizedBeforeSuite] 
k8s.io/kubernetes@v1.35.8/test/e2e/e2e.go:69
------------------------------
• [12.345 seconds]
[sig-network] DNS should provide DNS for services [Conformance] [sig-network, Conformance]
k8s.io/kubernetes@v1.35.8/test/e2e/network/dns.go:137
  • [1.000 seconds]
  a line of a container's log
------------------------------
• [FAILED] [300.100 seconds]
[sig-network] HostPort [BeforeEach] maps [LinuxOnly]` + "\x1b[2J" + ` [Conformance] [sig-network, Conformance]
  [BeforeEach] k8s.io/x.go:1
------------------------------
• [PANICKED!] [0.100 seconds]
[sig-network] Services [It] panics [sig-network]
------------------------------
S [SKIPPED] [0.010 seconds]
[sig-network] Services needs ten nodes [sig-network]
`
	var b strings.Builder
	// A line of any length is read.
	if err := follow(strings.NewReader(strings.Repeat("x", 1<<17)+"\n"+output), &b); err != nil {
		t.Fatal(err)
	}
	want := `passed       12.345 s  [sig-network] DNS should provide DNS for services [Conformance]
failed      300.100 s  [sig-network] HostPort maps [LinuxOnly]\u001b[2J [Conformance]
panicked      0.100 s  [sig-network] Services panics
skipped       0.010 s  [sig-network] Services needs ten nodes
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

const junitExample = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="6" time="62.5"><testsuite name="Kubernetes e2e suite" time="62.5">
<properties><property name="SuiteSucceeded" value="false"></property><property name="SpecialSuiteFailureReason" value=""></property></properties>
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="5"></testcase>
<testcase name="[It] [sig-network] b fails" status="failed" time="30">
<failure type="failed">[FAILED] Timed out&#x202e; after 30s.&#xA;Expected&#xA;In [It] at: x.go:1</failure></testcase>
<testcase name="[It] [sig-network] a passes" status="passed" time="2.5"></testcase>
<testcase name="[It] [sig-apps] is not asked for" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
<testcase name="[It] [sig-network] c skips itself" status="skipped" time="0.1"><skipped message="skipped - needs IPv6"></skipped></testcase>
</testsuite></testsuites>`

func example(t *testing.T, text string) results {
	t.Helper()
	file := filepath.Join(t.TempDir(), "junit.xml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := readResults(file)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTable(t *testing.T) {
	var b strings.Builder
	example(t, junitExample).table(&b, causes{"[sig-network] b fails": "nothing listens"})
	want := `
failed after 30.0 s: [sig-network] b fails
    Timed out\u202e after 30s.
    cause: nothing listens

skipped after 0.1 s: [sig-network] c skips itself
    needs IPv6

3 specs: 1 failed, 1 passed, 1 skipped in 1m3s
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestJudge(t *testing.T) {
	stopped := strings.Replace(junitExample, `"SpecialSuiteFailureReason" value=""`,
		`"SpecialSuiteFailureReason" value="Suite Timeout Elapsed"`, 1)
	if r := example(t, stopped); r.stopped != "Suite Timeout Elapsed" {
		t.Errorf("stopped: %q", r.stopped)
	}
	tests := []struct {
		name  string
		junit string
		known causes
		want  string // a part of the error; "" for none
	}{
		{"each failure has a cause", junitExample, causes{"[sig-network] b fails": "x"}, ""},
		{"a cause of what did not run", junitExample, causes{"[sig-network] b fails": "x", "[sig-apps] is not asked for": "x"}, ""},
		{"a failure without one", junitExample, nil, "without a cause in controlplane/e2e/causes.yaml: [sig-network] b fails"},
		{"a cause that passes", junitExample, causes{"[sig-network] b fails": "x", "[sig-network] a passes": "x"}, "passed, take its cause out"},
		{"a cause that skips itself", junitExample, causes{"[sig-network] b fails": "x", "[sig-network] c skips itself": "x"}, "skipped, take"},
		{"a cause of no spec", junitExample, causes{"[sig-network] b fails": "x", "[sig-network] d": "x"}, "no such spec, take its cause out of"},
		{"nothing before all specs", strings.Replace(junitExample, `"[SynchronizedBeforeSuite]" status="passed"`,
			`"[SynchronizedBeforeSuite]" status="failed"`, 1), causes{"[sig-network] b fails": "x"}, "[SynchronizedBeforeSuite]"},
		{"nothing ran", "<testsuites></testsuites>", nil, "no spec ran"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := example(t, test.junit).judge(test.known)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestSection(t *testing.T) {
	got := section(example(t, junitExample), causes{"[sig-network] b fails": "one | two"})
	want := `**3 specs: 1 failed, 1 passed, 1 skipped.**

| spec | | cause |
|---|---|---|
| [sig-network] b fails | failed | one \| two |
| [sig-network] c skips itself | skipped | needs IPv6 |`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestReplaceSection(t *testing.T) {
	page := "# Page\n\nText.\n"
	page = replaceSection(page, "## One\n", "\nfirst\n")
	page = replaceSection(page, "## Two\n", "\nsecond\n")
	page = replaceSection(page, "## One\n", "\nthird\n")
	if diff := cmp.Diff("# Page\n\nText.\n\n## One\n\nthird\n\n## Two\n\nsecond\n", page); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Each selection of specs that the page has is found, and no other.
func TestTitle(t *testing.T) {
	for o, want := range map[options]string{
		{focus: `\[sig-network\].*\[Conformance\]`}:                          "[sig-network] Conformance",
		{focus: `\[sig-api-machinery\].*\[Conformance\]`}:                    "[sig-api-machinery] Conformance",
		{focus: `\[sig-(auth|api-machinery)\].*\[Conformance\]`}:             "[sig-auth], [sig-api-machinery] Conformance",
		{focus: selections["beyond"].focus, skip: selections["beyond"].skip}: "[sig-network] beyond Conformance",
		{focus: `\[sig-network\]`, skip: `\[Conformance\]`}:                  "",
		{focus: `\[sig-network\]`}:                                           "",
		{focus: `\[sig-network\].*\[Conformance\]`, skip: "x"}:               "",
		{focus: `\[sig-network\] Services`}:                                  "",
		{focus: `x|\[sig-network\].*\[Conformance\]`}:                        "",
	} {
		if got := o.title(); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
}

func TestOverview(t *testing.T) {
	page := "# Page\n\n## Results\n\nold\n\n" +
		"## [sig-a] Conformance: kubenet\n\nKubernetes, 5s.\n\n**2 specs: 1 failed, 1 passed.**\n\n| spec | | cause |\n\n" +
		"## [sig-b] Conformance: Azure CNI, mode bridge\n\nKubernetes, 5s.\n\n**2 specs: 2 passed.**\n"
	want := `
| specs | lab | |
|---|---|---|
| [sig-a] Conformance | kubenet | 2 specs: 1 failed, 1 passed |
| [sig-b] Conformance | Azure CNI, mode bridge | 2 specs: 2 passed |
`
	if diff := cmp.Diff(want, overview(page)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The causes that are kept can be read, and each is a whole line.
func TestCauses(t *testing.T) {
	known, err := readCauses(filepath.Join("../..", causesFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, cause := range known {
		if cause == "" || strings.Contains(cause, "\n") {
			t.Errorf("%s: the cause is %q", name, cause)
		}
	}
}

// Each network's cluster.yaml is one that up takes, with room for its pods.
func TestClusterYAML(t *testing.T) {
	for network := range networks {
		o := options{network: network, nodes: 10}
		if _, errs := cluster.Parse(cluster.Placement{}, []byte(clusterYAML(o))); len(errs) > 0 {
			t.Errorf("%+v: %v", o, errs)
		}
	}
}

// TestNamed: images are made under each name that the suite has for them, those that they are made from first; what it does not name is
// told.
func TestNamed(t *testing.T) {
	const list = "registry.k8s.io/one:1\nregistry.k8s.io/two:1\nregistry.k8s.io/two:2\nquay.io/one:7\nregistry.k8s.io/other:1\n"
	made := []recipe{{"one", images.Assembly{Cmd: []string{"sh"}}}, {"two", images.Assembly{From: "one", User: "1"}}}
	got, err := named(made, list)
	want := []images.Assembly{
		{Name: "registry.k8s.io/one:1", Cmd: []string{"sh"}},
		{Name: "registry.k8s.io/two:1", From: "registry.k8s.io/one:1", User: "1"},
		{Name: "registry.k8s.io/two:2", From: "registry.k8s.io/one:1", User: "1"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("-want +got, %v:\n%s", err, diff)
	}
	if _, err := named(append(made, recipe{repository: "three"}), list); err == nil || !strings.Contains(err.Error(), "three") {
		t.Errorf("not named: %v", err)
	}
}
