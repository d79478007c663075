package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// ApplyNFT applies an nft script in the namespace as one transaction (nft -f): all of it or nothing. The error holds nft's words.
func (n *Namespace) ApplyNFT(script string) error {
	_, err := n.command(script, "nft", "-f", "-")
	return err
}

// DumpNFT returns the namespace's rule set in nft's JSON (libnftables-json(5)).
func (n *Namespace) DumpNFT() ([]byte, error) { return n.command("", "nft", "-j", "list", "ruleset") }

// RestoreIPTables applies iptables-restore input in the namespace; other tables and, with noFlush, other chains are left alone.
func (n *Namespace) RestoreIPTables(input string, noFlush bool) error {
	args := []string{"--wait=5"}
	if noFlush {
		args = append(args, "--noflush")
	}
	_, err := n.command(input, "iptables-restore", args...)
	return err
}

// DumpIPTables returns what iptables-save prints in the namespace.
func (n *Namespace) DumpIPTables() ([]byte, error) { return n.command("", "iptables-save") }

// command runs a program in the namespace with input on its standard input and returns what it prints.
func (n *Namespace) command(input, name string, args ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := n.Run(cmd); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%w; install it with apt-get install %s", err, debianPackage(name))
		}
		return nil, fmt.Errorf("%s in %s: %w: %s", name, n.path, err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

func debianPackage(program string) string {
	switch {
	case program == "nft":
		return "nftables"
	case strings.HasPrefix(program, "iptables"):
		return "iptables"
	default:
		return program
	}
}
