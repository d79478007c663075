// Command packetwalk runs labs, looks into them and explains what happens there. See package cli.
package main

import (
	"os"

	"packetwalk.dev/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
