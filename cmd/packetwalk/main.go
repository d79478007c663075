// Command packetwalk runs labs, looks into them and explains what happens there. See package cli.
package main

import (
	"fmt"
	"os"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/cli"
)

func main() {
	if err := program.AddSystemPath(); err != nil {
		fmt.Fprintln(os.Stderr, "packetwalk:", err)
		os.Exit(1)
	}
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	if cli.IsPlugin(os.Args[0]) {
		os.Exit(cli.PluginMain(os.Args[0], os.Args[1:], streams))
	}
	os.Exit(cli.Main(os.Args[1:], streams))
}
