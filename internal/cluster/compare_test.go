package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// TestCompare holds the changes from each file's first cluster.yaml to its second against the third part.
func TestCompare(t *testing.T) {
	files, err := filepath.Glob("testdata/compare/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var clusters []*Cluster
			for _, f := range a.Files[:2] {
				c, errs := Parse(f.Data, testApps...)
				if len(errs) > 0 {
					t.Fatal(errs)
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
			if *update {
				a.Files = append(a.Files[:2], txtar.File{Name: "changes", Data: []byte(b.String())})
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(string(a.Files[2].Data), b.String()); d != "" {
				t.Error(d)
			}
			for _, c := range clusters {
				if same := Compare(c, c); len(same) > 0 {
					t.Errorf("a cluster differs from itself: %v", same)
				}
			}
		})
	}
}
