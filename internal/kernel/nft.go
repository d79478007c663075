package kernel

import (
	"context"
	"fmt"

	"packetwalk.dev/internal/base/program"
)

// ApplyNFT applies an nft script in the namespace as one transaction (nft -f): all of it or nothing. The error holds nft's words.
func (n *Namespace) ApplyNFT(ctx context.Context, script string) error {
	_, err := n.command(ctx, script, "nft", "-f", "-")
	return err
}

// RestoreIPTables applies iptables-restore input in the namespace; other tables and, with noFlush, other chains are left alone.
func (n *Namespace) RestoreIPTables(ctx context.Context, input string, noFlush bool) error {
	args := []string{"--wait=5"}
	if noFlush {
		args = append(args, "--noflush")
	}
	_, err := n.command(ctx, input, "iptables-restore", args...)
	return err
}

// command runs a program in the namespace with input on its standard input and returns what it prints.
func (n *Namespace) command(ctx context.Context, input, name string, args ...string) ([]byte, error) {
	out, err := program.Command{Path: name, Args: args, Stdin: []byte(input), In: n.Do}.Output(ctx)
	if err != nil {
		return nil, fmt.Errorf("in %s: %w", n.path, err)
	}
	return out, nil
}
