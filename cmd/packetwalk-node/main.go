// Command packetwalk-node is the node agent: the service proxy, the ip-masq-agent and Calico's pools. It runs in each of the lab's nodes
// and, as the same program, on the nodes of a real cluster. The main holds flags and exit codes only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"packetwalk.dev/internal/node/agent"
)

// version is set when the program is built: -ldflags "-X main.version=…".
var version = "development"

func main() {
	// The agent's own data is small and long-lived: collecting early costs little and keeps many agents on one machine small.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	c, err := parse(args)
	if err == nil && !c.showVersion {
		err = c.Validate()
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
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
	logger := log.New(os.Stderr, "", log.LstdFlags|log.Lmicroseconds)
	if len(c.notes) > 0 {
		logger.Printf("warning: %s", strings.Join(c.notes, "; "))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := func() error { return agent.Run(ctx, c.Options, logger) }
	if c.cleanup {
		run = func() error { return agent.Cleanup(ctx, c.Options) }
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-node: %v\n", err)
		return 1
	}
	return 0
}
