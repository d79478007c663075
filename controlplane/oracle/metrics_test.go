package oracle

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"

	"packetwalk.dev/internal/node/agent"
	"packetwalk.dev/internal/node/agent/options"
)

// absent are upstream's metrics that packetwalk-node has not, by how their names begin; docs/service-proxy.md names them, too.
var absent = map[string]string{
	"go_":         "of Go's run time there is go_goroutines alone",
	"process_":    "virtual memory and limits of the process, and its network traffic, say nothing of a node agent",
	"kubernetes_": "it is no build of Kubernetes, and has no feature gates",
}

// upstreamsNames reads the names in the source: a registry tells nothing of metrics that have no values yet.
func upstreamsNames(t *testing.T) (names []string) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "k8s.io/kubernetes/pkg/proxy/metrics").Output()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "metrics.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`Name:\s+"(\w+)"|"(kubeproxy_\w+)"`).FindAllStringSubmatch(string(source), -1) {
		name := m[2]
		if name == "" {
			name = "kubeproxy_" + m[1]
		}
		names = append(names, name)
	}
	if len(names) < 20 {
		t.Fatalf("upstream's source has only %q", names)
	}
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		name, begins := one.GetName(), func(prefix string) bool { return strings.HasPrefix(one.GetName(), prefix) }
		if begins("go_") || begins("process_") || begins("kubernetes_") {
			names = append(names, name)
		}
	}
	return names
}

// TestMetricsHaveUpstreamsNames: what upstream measures is there by the same name, or left out for a reason, and nothing else has such a
// name.
func TestMetricsHaveUpstreamsNames(t *testing.T) {
	theirs, ours := upstreamsNames(t), append(agent.MetricNames(options.BackendIPTables), agent.MetricNames(options.BackendNFTables)...)
	for _, name := range theirs {
		kind, _, _ := strings.Cut(name, "_")
		if absent[kind+"_"] == "" && !slices.Contains(ours, name) {
			t.Errorf("no metric %s", name)
		}
	}
	for _, name := range ours {
		if !slices.Contains(theirs, name) && !strings.HasPrefix(name, "packetwalk_") {
			t.Errorf("%s is none of upstream's", name)
		}
	}
}
