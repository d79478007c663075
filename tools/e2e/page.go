package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// recorded are the selections of specs that docs/dev/conformance.md has results of, beside those with a name: those of groups,
// "\[sig-(a|b)\]", that belong to Conformance.
var recorded = regexp.MustCompile(`^\\\[sig-(\([a-z|-]+\)|[a-z-]+)\\\]\.\*\\\[Conformance\\\]$`)

// A selection of specs that has a name.
type selection struct{ title, focus, skip string }

// selections are those beside Conformance's groups. Beyond are the specs of the network that are no part of Conformance and that a lab of
// AKS can be asked: others want a whole cluster for themselves, another network (IPv6, SCTP), or Google's cloud. Policies are what upstream
// runs for a network policy provider.
var selections = map[string]selection{
	"beyond": {
		"[sig-network] beyond Conformance",
		`\[sig-network\] (Services|Networking|Conntrack|Connectivity|Topology|Traffic|LoadBalancers|HostPort|DNS|NoSNAT|KubeProxy|` +
			`EndpointSlice|Service CIDRs|Proxy)`,
		`\[Conformance\]|\[Serial\]|Feature:(SCTP|IPv6|Netw|Perf|OffBy|KubeProxyNFAcct)|GCE`,
	},
	"policies": {"[sig-network] Netpol", `\[sig-network\] Netpol`, `\[Serial\]|Feature:SCTP|IPv6`},
}

// title returns the name of a selection on the page; "" for one that is not recorded.
func (o options) title() string {
	for _, s := range selections {
		if o.focus == s.focus && o.skip == s.skip {
			return s.title
		}
	}
	m := recorded.FindStringSubmatch(o.focus)
	if m == nil || o.skip != "" {
		return ""
	}
	return "[sig-" + strings.ReplaceAll(strings.Trim(m[1], "()"), "|", "], [sig-") + "] Conformance"
}

// writePage puts the results into their section of the page, in place of those of the same selection and network, or at the end. A
// run of other specs is not recorded.
func writePage(ctx context.Context, o options, r results, known causes) error {
	title := o.title()
	if title == "" || o.page == "" {
		return nil
	}
	page, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	commit, err := output(ctx, "git", "describe", "--always", "--dirty")
	if err != nil {
		return err
	}
	release, err := output(ctx, "bin/e2e/e2e.test", "-version")
	if err != nil {
		return err
	}
	heading := fmt.Sprintf("## %s: %s\n", title, networks[o.network].title)
	text := fmt.Sprintf("\nKubernetes %s, packetwalk %s, %s; %d nodes, %d specs at the same time, %s.\n\n%s\n", release, commit,
		time.Now().UTC().Format(time.DateOnly), o.nodes, o.procs, time.Duration(r.seconds*float64(time.Second)).Round(time.Second),
		section(r, known))
	text = replaceSection(string(page), heading, text)
	return os.WriteFile(o.page, []byte(replaceSection(text, resultsHeading, overview(text))), 0o644)
}

// section returns the results as Markdown.
func section(r results, known causes) string {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s.**\n", r.summary())
	if r.states()["passed"] < len(r.specs) {
		b.WriteString("\n| spec | | cause |\n|---|---|---|\n")
	}
	for _, s := range r.specs {
		cause := known[s.name]
		if s.state == "skipped" {
			cause = s.why
		}
		if s.state != "passed" {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(s.name), s.state, cell(cause))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// resultsHeading is that of the table of all sections.
const resultsHeading = "## Results\n"

var sections = regexp.MustCompile(`(?m)^## (.+): (.+)\n\n.+\n\n\*\*(.+)\.\*\*$`)

// overview returns a table of the page's sections.
func overview(page string) string {
	lines := []string{"", "| specs | lab | |", "|---|---|---|"}
	for _, m := range sections.FindAllStringSubmatch(page, -1) {
		lines = append(lines, fmt.Sprintf("| %s | %s | %s |", m[1], m[2], m[3]))
	}
	return strings.Join(lines, "\n") + "\n"
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// replaceSection puts text below the heading, in place of what is there up to the next heading of its level.
func replaceSection(page, heading, text string) string {
	before, after, found := strings.Cut(page, heading)
	if !found {
		return strings.TrimRight(page, "\n") + "\n\n" + heading + text
	}
	rest := ""
	if i := strings.Index(after, "\n## "); i >= 0 {
		rest = after[i:]
	}
	return before + heading + text + rest
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
