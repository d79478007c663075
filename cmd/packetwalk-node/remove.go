package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/node/agent"
	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/options"
)

// removeAll is the sub-command that leaves nothing of packetwalk on a node.
const (
	removeAll     = "remove-all"
	removeAllHelp = "remove everything that packetwalk left on this node: rules of Services and the chain IP-MASQ-AGENT"
)

// removeTime is how long a removal may take.
const removeTime = time.Minute

// runRemoveAll returns the exit status.
func runRemoveAll(args []string) int {
	f := pflag.NewFlagSet(removeAll, pflag.ContinueOnError)
	f.Usage = func() {}
	o := options.Defaults()
	f.StringVar(&o.IPTablesVariant, "iptables-variant", iptablescmd.VariantDetect, "which of iptables' programs to run: nft, legacy or detect")
	err := f.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Printf("Usage: packetwalk-node %s [flags]: %s\n%s", removeAll, removeAllHelp, f.FlagUsages())
		return 0
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q; all settings are flags", f.Arg(0))
	case err == nil:
		err = o.Validate()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-node %s: %v\n", removeAll, err)
		return 2
	}
	logger := newLogger()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	err = agent.RemoveRules(ctx, o, func(format string, args ...any) { logger.Info(fmt.Sprintf(format, args...)) })
	if err != nil {
		logger.Error(err.Error())
		return 1
	}
	return 0
}
