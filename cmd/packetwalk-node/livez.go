package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/node/agent"
)

// checkLivez is the sub-command for the probe of a pod, whose exit status is the answer.
const (
	checkLivez     = "check-livez"
	checkLivezHelp = "tell whether the packetwalk-node of this pod is alive, also while another service proxy has its ports"
)

// podUID is the flag of all who belong to a pod.
func podUID(f *pflag.FlagSet, into *string) {
	f.StringVar(into, "pod-uid", os.Getenv("POD_UID"),
		"`UID` of the pod that this runs in, for check-livez and check-cni in it; by default $POD_UID")
}

// runLivez gives the exit status.
func runLivez(args []string) int {
	f := pflag.NewFlagSet(checkLivez, pflag.ContinueOnError)
	f.Usage = func() {}
	var uid string
	podUID(f, &uid)
	err := f.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Printf("Usage: packetwalk-node %s [flags]: %s\n%s", checkLivez, checkLivezHelp, f.FlagUsages())
		return 0
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q; all settings are flags", f.Arg(0))
	case err == nil && uid == "":
		err = errors.New("--pod-uid: not given")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-node %s: %v\n", checkLivez, err)
		return 2
	}
	if err := agent.Livez(context.Background(), uid); err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-node %s: %v\n", checkLivez, err)
		return 1
	}
	return 0
}
