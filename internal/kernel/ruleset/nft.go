package ruleset

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
)

// ApplyNFT applies an nft script in the namespace as one transaction (nft -f): all of it or nothing. The error holds nft's words.
func ApplyNFT(ctx context.Context, n *netns.Namespace, script string) error {
	_, err := command(ctx, n, script, "nft", "-f", "-")
	return err
}

const (
	nftLoadLimit = 10 * time.Second
	maxNFTJSON   = 256 << 20 // bytes
)

// nftInclude is a line of nft's syntax that reads a file.
var nftInclude = regexp.MustCompile(`(?m)(?:^|[;{}])\s*include\b`)

// LoadNFT gives a text in nft's own syntax as "nft -j list ruleset" prints it: nft itself loads it in an empty network namespace, which
// ends with it. If the caller is not root, a user namespace is made, too. A text with an include is refused. The error has nft's words.
func LoadNFT(ctx context.Context, text []byte) ([]byte, error) {
	if nftInclude.Match(text) {
		return nil, errors.New("it includes a file, which is not read")
	}
	args := []string{"--net"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	if _, err := exec.LookPath("nft"); err != nil { // the shell would say less
		return nil, fmt.Errorf("%w; install it: apt-get install nftables", err)
	}
	args = append(args, "sh", "-c", "nft -f - && exec nft -j list ruleset")
	out, err := program.Command{Path: "unshare", Args: args, Stdin: text, Limit: nftLoadLimit, MaxOutput: maxNFTJSON}.Output(ctx)
	var failed *program.Error
	if errors.As(err, &failed) && failed.Stderr != "" {
		err = fmt.Errorf("nft does not load it: %s", strings.ReplaceAll(failed.Stderr, "/dev/stdin:", "line "))
	}
	return out, err
}

// RestoreIPTables applies iptables-restore input in the namespace; other tables and, with noFlush, other chains are left alone.
func RestoreIPTables(ctx context.Context, n *netns.Namespace, input string, noFlush bool) error {
	args := []string{"--wait=5"}
	if noFlush {
		args = append(args, "--noflush")
	}
	_, err := command(ctx, n, input, "iptables-restore", args...)
	return err
}

// command runs a program in the namespace with input on its standard input and returns what it prints.
func command(ctx context.Context, n *netns.Namespace, input, name string, args ...string) ([]byte, error) {
	out, err := program.Command{Path: name, Args: args, Stdin: []byte(input), In: n.Do}.Output(ctx)
	if err != nil {
		return nil, fmt.Errorf("in %s: %w", n.Path(), err)
	}
	return out, nil
}
