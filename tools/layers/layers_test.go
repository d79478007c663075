package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../../"

// TestImports: no package links what the table forbids, tests aside; each has a row, and each row a package.
func TestImports(t *testing.T) {
	page, err := os.ReadFile(root + "docs/dev/design.md")
	if err != nil {
		t.Fatal(err)
	}
	table, err := Parse(string(page))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Deps", "./internal/...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Deps       []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		rule, ok := table[name]
		if !ok {
			t.Errorf("%s has no row in docs/dev/design.md", name)
		}
		delete(table, name)
		for _, d := range p.Deps {
			if by, bad := rule.Denies(d); bad {
				t.Errorf("%s links %s: docs/dev/design.md forbids it %s", name, d, by)
			}
		}
	}
	for name := range table {
		t.Errorf("docs/dev/design.md has a row of %s: there is no such package", name)
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
		cmd := exec.Command("go", "list", "-f", `{{join .Deps "\n"}}`, "./cmd/"+program)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range strings.Fields(string(out)) {
			if by, bad := (Rule{Denied: denied}).Denies(d); bad {
				t.Errorf("cmd/%s links %s: it must not link %s", program, d, by)
			}
		}
	}
}

// TestParse: the words of the table, and words that it does not have.
func TestParse(t *testing.T) {
	got, err := Parse("| package | owns | must not link |\n|---|---|---|\n| `a/b` | x | Kubernetes, `kernel` |\n| `c` | z | – |\n| `d` | z | ours but `a` but `b/c`, client-go |\n")
	want := map[string]Rule{
		"a/b": {Denied: []string{"k8s.io", module + "/kernel"}},
		"c":   {},
		"d":   {Denied: []string{"k8s.io/client-go", module}, Excepted: []string{module + "/a", module + "/b/c"}},
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	for _, page := range []string{"", "| `a` | x | everything |\n", "| `a` | x | ours but all |\n", "| `a` | x | – |\n| `a` | x | – |\n"} {
		if _, err := Parse(page); err == nil {
			t.Errorf("%q is a table", page)
		}
	}
	for path, denied := range map[string]bool{module + "/a/x": false, module + "/b": true, module + "/ab": true, "k8s.io/client-gone": false} {
		if _, bad := got["d"].Denies(path); bad != denied {
			t.Errorf("%s denied: %v", path, bad)
		}
	}
}
