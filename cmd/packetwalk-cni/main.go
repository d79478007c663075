// Command packetwalk-cni is a CNI plugin (https://www.cni.dev/docs/spec/): it connects pods to a node's network as Azure CNI does. Package
// cni has the work; here are the program's streams and exit codes: 0, or 1 with the specification's error object on standard output.
package main

import (
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/node/cni"
)

func main() {
	if err := program.AddSystemPath(); err != nil {
		fmt.Fprintln(os.Stderr, "packetwalk-cni:", err)
		os.Exit(1)
	}
	skel.PluginMainFuncs(cni.Funcs(os.Stdout), cni.Versions(), "packetwalk-cni: Azure CNI's pod network (bridge and transparent mode)")
}
