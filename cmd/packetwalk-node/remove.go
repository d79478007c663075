package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/node/agent"
	"packetwalk.dev/internal/node/cniinstall"
)

// removeAll is the sub-command that leaves nothing of packetwalk on a node.
const (
	removeAll     = "remove-all"
	removeAllHelp = "remove everything that packetwalk left on this node: rules of Services, the chain IP-MASQ-AGENT, the CNI plugin"
)

// removeTime is how long a removal may take.
const removeTime = time.Minute

// runRemoveAll returns the exit status.
func runRemoveAll(args []string) int {
	f := pflag.NewFlagSet(removeAll, pflag.ContinueOnError)
	f.Usage = func() {}
	o := agent.Defaults()
	var d cniinstall.Dirs
	f.StringVar(&o.IPTablesVariant, "iptables-variant", agent.VariantDetect, "which of iptables' programs to run: nft, legacy or detect")
	f.StringVar(&d.Bin, "bin-dir", "/opt/cni/bin", "the node's `directory` of CNI plugins")
	f.StringVar(&d.Conf, "conf-dir", "/etc/cni/net.d", "the node's `directory` of network configurations")
	root := f.String("root", "/", "`directory` that has the node's files, such as /host in a pod of kubectl debug")
	cni := f.Bool("cni", true, "remove the CNI plugin and its configuration, too; pods that still run need it to end")
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
	if err == nil && *cni {
		err = removePlugin(cniinstall.Dirs{Bin: filepath.Join(*root, d.Bin), Conf: filepath.Join(*root, d.Conf)}, logger)
	}
	if err != nil {
		logger.Error(err.Error())
		return 1
	}
	return 0
}

// removePlugin removes the CNI plugin; where a directory is missing none is installed.
func removePlugin(d cniinstall.Dirs, logger *slog.Logger) error {
	notes, err := cniinstall.Remove(d, "")
	if errors.Is(err, fs.ErrNotExist) {
		logger.Info("no CNI plugin is installed: " + err.Error())
		return nil
	}
	for _, n := range notes {
		logger.Info("CNI plugin: " + n)
	}
	if err == nil {
		logger.Info("no CNI plugin that packetwalk installed is left")
	}
	return err
}
