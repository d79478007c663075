package cli

import (
	"fmt"
	"os"
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

// condition answers [root]: the scripts that need it are skipped as any other user.
func condition(name string) (bool, error) {
	if name != "root" {
		return false, fmt.Errorf("no condition %q", name)
	}
	return os.Geteuid() == 0, nil
}
