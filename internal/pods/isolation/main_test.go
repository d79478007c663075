package isolation

import (
	"fmt"
	"os"
	"runtime"
	"testing"
)

func init() { runtime.LockOSThread() }

// TestMain runs the tests, or what they start: packetwalk-app and programs.
func TestMain(m *testing.M) {
	if status, ok := Main(os.Args); ok {
		os.Exit(status)
	}
	switch {
	case os.Args[0] == "probe":
		probe(os.Args[1:])
		os.Exit(7)
	case os.Getenv(isolated) != "":
		if err := isolateAndPivot(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}
