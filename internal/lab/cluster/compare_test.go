package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/testing/goldentest"
)

// TestCompare holds the changes from each file's first cluster.yaml to its second against the third part.
func TestCompare(t *testing.T) {
	goldentest.Run(t, "testdata/compare/*.txtar", 2, func(t *testing.T, in []txtar.File) []txtar.File {
		var clusters []*Cluster
		for _, f := range in {
			c, errs := Parse(nil, f.Data, testApps...)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if same := Compare(c, c); len(same) > 0 {
				t.Errorf("a cluster differs from itself: %v", same)
			}
			clusters = append(clusters, c)
		}
		var b strings.Builder
		for _, c := range Compare(clusters[0], clusters[1]) {
			if c.NewCluster {
				b.WriteString("new cluster: ")
			}
			fmt.Fprintln(&b, c)
		}
		return []txtar.File{{Name: "changes", Data: []byte(b.String())}}
	})
}
