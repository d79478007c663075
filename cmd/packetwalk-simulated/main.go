// Command packetwalk-simulated is one simulated node of a lab: node pools with runtime: simulated. It runs in the node's network namespace.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/simulated"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: packetwalk-simulated CONFIG")
		os.Exit(2)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(30) // hundreds of nodes share one machine
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "packetwalk-simulated:", err)
		os.Exit(1)
	}
}

func run(file string) error {
	if err := program.AddSystemPath(); err != nil {
		return err
	}
	config, err := simulated.ReadConfig(file)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return simulated.Run(ctx, config, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}
