package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const root = "../../"

func design(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(root + "docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	table, err := Parse(string(page))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestImports: no package imports what the table forbids, tests aside.
func TestImports(t *testing.T) {
	table := design(t)
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./internal/...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
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
		denied, ok := table[path.Base(p.ImportPath)]
		if ok {
			checked++
		}
		for _, i := range p.Imports {
			if by, bad := Denied(i, denied); bad {
				t.Errorf("%s imports %s: docs/design.md forbids it %s", p.ImportPath, i, by)
			}
		}
	}
	if checked < len(table)/2 {
		t.Errorf("%d packages of the table's %d found", checked, len(table))
	}
}

// TestDepguard: golangci-lint's rules are the table's.
func TestDepguard(t *testing.T) {
	data, err := os.ReadFile(root + ".golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct {
						Files []string
						Allow []string
						Deny  []struct{ Pkg string }
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for name, r := range config.Linters.Settings.Depguard.Rules {
		if len(r.Files) != 2 || r.Files[0] != "**/internal/"+name+"/*.go" {
			t.Errorf("rule %s is for %v", name, r.Files)
		}
		for _, a := range r.Allow {
			got[name] = append(got[name], "!"+a)
		}
		for _, d := range r.Deny {
			got[name] = append(got[name], d.Pkg)
		}
	}
	want := design(t)
	for name, denied := range want {
		if len(denied) == 0 {
			delete(want, name)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("docs/design.md (-) and .golangci.yml (+) differ:\n%s", d)
	}
}

// TestParse: the words of the table, and words that it does not have.
func TestParse(t *testing.T) {
	got, err := Parse("| package | owns | must not import |\n|---|---|---|\n| `a` | x | Kubernetes, `kernel` |\n| `b` | y | `lab` and what it owns |\n| `c` | z | – |\n| `d` | z | anything but `a` |\n")
	want := map[string][]string{
		"a": {"k8s.io", module + "/kernel"},
		"b": {module + "/container", module + "/controlplane", module + "/fabric", module + "/kubelet", module + "/lab"},
		"c": nil,
		"d": {"!" + module + "/a", module},
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	if _, err := Parse("| `a` | x | everything |\n"); err == nil {
		t.Error("no error for unknown words")
	}
	if _, bad := Denied(module+"/a", got["d"]); bad {
		t.Error("the exception is forbidden")
	}
	if _, bad := Denied(module+"/b", got["d"]); !bad {
		t.Error("what is no exception is allowed")
	}
	if _, bad := Denied("k8s.io/client-gone", []string{"k8s.io/client-go"}); bad {
		t.Error("a prefix forbids a path that only starts with the same letters")
	}
}
