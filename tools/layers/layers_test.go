package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../../"

// TestImports: each package imports what its row of the table has and nothing else of ours or of groups, tests aside.
func TestImports(t *testing.T) {
	page, err := os.ReadFile(root + "docs/dev/design.md")
	if err != nil {
		t.Fatal(err)
	}
	table, err := Parse(string(page))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./internal/...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	checked := []string{module}
	for _, prefix := range groups {
		checked = append(checked, prefix)
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		allowed, ok := table[name]
		if !ok {
			t.Errorf("%s has no row in docs/dev/design.md", name)
			continue
		}
		delete(table, name)
		for _, i := range p.Imports {
			if isUnder(i, checked...) && !isUnder(i, allowed...) {
				t.Errorf("%s imports %s, which its row in docs/dev/design.md does not have", name, i)
			}
		}
		for _, prefix := range allowed {
			if !slices.ContainsFunc(p.Imports, func(i string) bool { return isUnder(i, prefix) }) {
				t.Errorf("%s imports nothing of %s, which its row in docs/dev/design.md has", name, prefix)
			}
		}
	}
	for name := range table {
		t.Errorf("docs/dev/design.md has a row of %s, which does not exist", name)
	}
}

// TestPrograms: the programs of which a lab has many are small. The agent's, one of which every node has in memory, can apply rules and
// nothing that explains them; neither it, nor the applications', nor the CNI plugin's knows images.
func TestPrograms(t *testing.T) {
	unpacking := []string{module + "/pods/images", "github.com/google/go-containerregistry", "github.com/klauspost/compress"}
	explaining := []string{module + "/model/walk", module + "/capture", module + "/model/conntrack", module + "/model/snapshot"}
	for program, denied := range map[string][]string{
		"packetwalk-node": append(explaining, unpacking...), "packetwalk-app": unpacking, "packetwalk-cni": unpacking,
	} {
		t.Run(program, func(t *testing.T) {
			cmd := exec.Command("go", "list", "-f", `{{join .Deps "\n"}}`, "./cmd/"+program)
			cmd.Dir = root
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range strings.Fields(string(out)) {
				if isUnder(d, denied...) {
					t.Errorf("it links %s", d)
				}
			}
		})
	}
}

func TestParse(t *testing.T) {
	got, err := Parse("| package | owns | loss | may import |\n|---|---|---|---|\n| `a/b` | x | y | Kubernetes, `kernel` |\n| `c` | z | y | – |\n")
	want := map[string][]string{"a/b": {"k8s.io", module + "/kernel"}, "c": nil}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	for name, page := range map[string]string{
		"empty": "", "unknown word": "| `a` | x | y | everything |\n", "two rows": "| `a` | x | y | – |\n| `a` | x | y | – |\n",
		"no loss": "| `a` | x | – | – |\n",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(page); err == nil {
				t.Error("no error")
			}
		})
	}
	for importPath, under := range map[string]bool{module + "/a/x": true, module + "/ab": false, "k8s.io/client-go": true, "k8s.ion": false} {
		if isUnder(importPath, module+"/a", "k8s.io") != under {
			t.Errorf("%s: %v", importPath, !under)
		}
	}
}
