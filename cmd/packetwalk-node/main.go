// Command packetwalk-node is the node agent: the service proxy and the ip-masq-agent. It runs in each of the lab's nodes and, as the same
// program, on the nodes of a real cluster. The main holds flags and exit codes only.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/node/agent"
	"packetwalk.dev/internal/node/agent/serviceproxy"
)

// version is set when the program is built: -ldflags "-X main.version=…".
var version = "development"

func main() {
	if err := program.AddSystemPath(); err != nil {
		fmt.Fprintln(os.Stderr, "packetwalk-node:", err)
		os.Exit(1)
	}
	// The agent's own data is small and long-lived: collecting early costs little and keeps many agents on one machine small.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	switch {
	case len(args) > 0 && args[0] == removeAll:
		return runRemoveAll(args[1:])
	case len(args) > 0 && checks[args[0]].ask != nil:
		return runCheck(args[0], args[1:])
	}
	c, err := parse(args)
	if err == nil && !c.showVersion {
		err = c.Validate()
	}
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(os.Stderr, "packetwalk-node: %s\n", strings.TrimSuffix(line, "\n"))
		}
		return 2
	case c.showVersion:
		fmt.Println("packetwalk-node", version)
		return 0
	}
	logger := newLogger()
	if len(c.notes) > 0 {
		logger.Warn(strings.Join(c.notes, "; "))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := c.run(ctx, logger); err != nil {
		logger.Error(err.Error())
		return 1
	}
	return 0
}

func (c *command) run(ctx context.Context, logger *slog.Logger) error {
	switch {
	case c.writeTo != "":
		c.proxy.Default()
		text, err := yaml.Marshal(&c.proxy)
		if err != nil {
			return err
		}
		return os.WriteFile(c.writeTo, text, 0o644)
	case c.cleanup:
		return serviceproxy.Cleanup(ctx, c.Options)
	case c.initOnly:
		return serviceproxy.Init(c.Options, logger)
	}
	return agent.Run(ctx, c.Options, logger)
}
