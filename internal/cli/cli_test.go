package cli

import (
	"debug/elf"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	streams := Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	testscript.Main(m, map[string]func(){
		"packetwalk":         func() { os.Exit(Main(os.Args[1:], streams)) },
		"kubectl-packetwalk": func() { os.Exit(PluginMain("kubectl-packetwalk", os.Args[1:], streams)) },
	})
}

// TestScripts runs what a user types on a machine without a lab. What needs one is in test/.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", UpdateScripts: os.Getenv("UPDATE") != "", Condition: condition})
}

// condition answers [root], and [static]: whether the program that the scripts run, this one, needs no shared library.
func condition(name string) (bool, error) {
	switch name {
	case "root":
		return os.Geteuid() == 0, nil
	case "static":
		self, err := elf.Open("/proc/self/exe")
		if err != nil {
			return false, err
		}
		defer self.Close()
		return !slices.ContainsFunc(self.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
	}
	return false, fmt.Errorf("no condition %q", name)
}
