package main

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/node/agent/options"
)

var update = flag.Bool("update", false, "rewrite the chart's list of flags")

// TestChartFlags: the chart, which cannot ask the program, knows its flags. Those of kube-proxy have no effect beside the configuration
// file, which the chart always writes.
func TestChartFlags(t *testing.T) {
	node := &command{Options: options.Defaults(), kubeProxys: map[string]bool{}}
	var all strings.Builder
	node.flags().VisitAll(func(f *pflag.Flag) {
		if !node.kubeProxys[f.Name] {
			all.WriteString("--" + f.Name + "\n")
		}
	})
	const file = "../../deploy/chart/files/node-flags.txt"
	if *update {
		if err := os.WriteFile(file, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	has, err := os.ReadFile(file)
	if err != nil || string(has) != all.String() {
		t.Errorf("%s has %q, %v; the program has %q; -update rewrites it", file, has, err, all.String())
	}
}
