package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/node/agent"
)

var update = flag.Bool("update", false, "rewrite the chart's lists of flags")

// TestChartFlags: the chart, which cannot ask the programs, knows their flags. Those of kube-proxy have no effect beside the configuration
// file, which the chart always writes.
func TestChartFlags(t *testing.T) {
	node := &command{Options: agent.Defaults(), kubeProxys: map[string]bool{}}
	for name, flags := range map[string]*pflag.FlagSet{"node": node.flags(), "cni": (&cniCommand{name: installCNI}).flags()} {
		var all strings.Builder
		flags.VisitAll(func(f *pflag.Flag) {
			if name != "node" || !node.kubeProxys[f.Name] {
				all.WriteString("--" + f.Name + "\n")
			}
		})
		file := filepath.Join("../../deploy/chart/files", name+"-flags.txt")
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
}
