// Command packetwalk-cni is a CNI plugin (https://www.cni.dev/docs/spec/): it connects pods to a node's network as Azure CNI does (package
// cni). Under the name packetwalk-handover it gives the pods of a container group's machine to the lab (package handover). Here are the
// program's streams and exit codes: 0, or 1 with the specification's error object on standard output.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/node/cni"
	"packetwalk.dev/internal/pods/handover"
)

func main() {
	if filepath.Base(os.Args[0]) == handover.Plugin {
		skel.PluginMainFuncs(handover.Funcs(), handover.Versions(), handover.Plugin+": a pod's namespace for who makes its network")
		return
	}
	if err := program.AddSystemPath(); err != nil {
		fmt.Fprintln(os.Stderr, "packetwalk-cni:", err)
		os.Exit(1)
	}
	skel.PluginMainFuncs(cni.Funcs(os.Stdout), cni.Versions(), "packetwalk-cni: Azure CNI's pod network (bridge and transparent mode)")
}
