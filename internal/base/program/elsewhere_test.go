package program_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// elsewhere are the files that start processes themselves, and why: what they start is not a program that is run to its end for an answer.
var elsewhere = map[string]string{
	"internal/base/program/program.go":                "the function that all others use",
	"internal/base/supervise/process.go":              "processes that go on without us, and are taken over by their pid files",
	"internal/lab/up.go":                              "the lab process, which goes on without us",
	"internal/cli/shell.go":                           "the user's shell",
	"internal/lab/preflight/trials.go":                "a process that holds a user namespace while a mount is mapped into it",
	"internal/pods/isolation/host.go":                 "what the user runs on a host, at a terminal as a rule, for as long as it takes",
	"internal/pods/preload/stage.go":                  "containerd, and its client which reads an archive of hundreds of megabytes",
	"internal/pods/isolation/node.go":                 "a program of a node's on it, for as long as that runs",
	"internal/pods/realnode/boot/main.go":             "what keeps a node's programs, by the node's first process",
	"internal/pods/app/agnhost.go":                    "a pod's own program, which does what its client asks for",
	"internal/tour/run.go":                            "the commands of a page, with a limit and a group of their own",
	"internal/testing/bpftest/bpftest.go":             "for tests only",
	"internal/testing/containertest/containertest.go": "for tests only",
	"internal/testing/kerneltest/process.go":          "for tests only",
	"internal/testing/runc/runc.go":                   "for tests only",
}

// TestElsewhere: no other code of ours starts a process, whatever name it imports the packages by.
func TestElsewhere(t *testing.T) {
	raw := []string{"SYS_CLONE", "SYS_CLONE3", "SYS_FORK", "SYS_VFORK"}
	starts := map[string][]string{
		"os/exec": {"Command", "CommandContext", "Cmd"}, "os": {"StartProcess"}, "syscall": append(raw, "ForkExec", "StartProcess"),
		"golang.org/x/sys/unix": raw,
	}
	const root = "../../.."
	unused := map[string]bool{}
	for file := range elsewhere {
		unused[file] = true
	}
	visit := func(path string) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string][]string{} // what must not be used of a package, by the package's name here
		for _, i := range file.Imports {
			imported, _ := strconv.Unquote(i.Path.Value)
			name := imported[strings.LastIndexByte(imported, '/')+1:]
			if i.Name != nil {
				name = i.Name.Name
			}
			names[name] = starts[imported]
		}
		shown, _ := filepath.Rel(root, path)
		typed := map[ast.Node]bool{} // of *exec.Cmd as a parameter: who starts it has made it
		ast.Inspect(file, func(n ast.Node) bool {
			if star, ok := n.(*ast.StarExpr); ok {
				typed[star.X] = true
			}
			selector, ok := n.(*ast.SelectorExpr)
			if !ok || typed[n] {
				return true
			}
			of, ok := selector.X.(*ast.Ident)
			if !ok {
				return true
			}
			for _, start := range names[of.Name] {
				if selector.Sel.Name == start {
					delete(unused, shown)
					if elsewhere[shown] == "" {
						t.Errorf("%s uses %s.%s; run programs by program.Command", shown, of.Name, start)
					}
				}
			}
			return true
		})
	}
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				visit(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for file := range unused {
		t.Errorf("%s starts no process: take it off the list", file)
	}
}
