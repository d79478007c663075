package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/node/agent"
)

// checks are the subcommands for the probes of a pod. Their exit status is the answer.
var checks = map[string]struct {
	help string
	ask  func(ctx context.Context, podUID string) error
}{
	"check-livez":  {"report whether the packetwalk-node of this pod is alive, also while another service proxy has its ports", agent.Livez},
	"check-readyz": {"report whether the packetwalk-node of this pod is ready, also while another service proxy has its ports", agent.Readyz},
}

// podUID defines the flag of all who belong to a pod.
func podUID(f *pflag.FlagSet, into *string) {
	f.StringVar(into, "pod-uid", os.Getenv("POD_UID"),
		"`UID` of the pod that this runs in, for check-livez and check-readyz in it; by default $POD_UID")
}

// runCheck returns the exit status.
func runCheck(name string, args []string) int {
	check := checks[name]
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.Usage = func() {}
	var uid string
	podUID(f, &uid)
	err := f.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Printf("Usage: packetwalk-node %s [flags]: %s\n%s", name, check.help, f.FlagUsages())
		return 0
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q; all settings are flags", f.Arg(0))
	case err == nil && uid == "":
		err = errors.New("--pod-uid: not given")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-node %s: %v\n", name, err)
		return 2
	}
	if err := check.ask(context.Background(), uid); err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-node %s: %v\n", name, err)
		return 1
	}
	return 0
}
