package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// RuleHandles lists the handles of a chain's rules in order, for rule sets whose text does not show them (iptables-save): the first is that
// of rule 1. The family is named as in nft ("ip", "bridge", …). A chain that is not there has none.
func RuleHandles(n *netns.Namespace, family, table, chain string) ([]uint64, error) {
	fail := func(err error) ([]uint64, error) {
		return nil, fmt.Errorf("list rules of %s %s %s in %s: %w", family, table, chain, n.Path(), err)
	}
	answers, err := askNFT(n, family, table, func(t nf.Table) netlink.Message { return t.ListRules(chain) })
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return fail(err)
	}
	var handles []uint64
	for _, a := range answers {
		handle, err := ruleHandle(a.Data, chain)
		if err != nil {
			return fail(err)
		}
		if handle != 0 {
			handles = append(handles, handle)
		}
	}
	return handles, nil
}

// CountChains counts the chains of all tables of nf_tables.
func CountChains(ctx context.Context, n *netns.Namespace) (int, error) {
	return count(ctx, n, "chains", nf.Table.ListChains)
}

// HasTables reports whether nf_tables has tables.
func HasTables(ctx context.Context, n *netns.Namespace) (bool, error) {
	tables, err := count(ctx, n, "tables", nf.Table.ListTables)
	return tables > 0, err
}

func count(ctx context.Context, n *netns.Namespace, what string, list func(nf.Table) netlink.Message) (int, error) {
	nft := NFTables{NetNS: n.FD()}
	defer nft.Close()
	answers, err := nft.Ask(ctx, list(nf.Table{Family: unix.NFPROTO_UNSPEC}))
	if err != nil {
		return 0, fmt.Errorf("list %s in %s: %w", what, n.Path(), err)
	}
	return len(answers), nil
}

// HasTable reports whether the kernel has a table of nf_tables.
func HasTable(n *netns.Namespace, family, table string) (bool, error) {
	_, err := askNFT(n, family, table, nf.Table.Get)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for table %s %s in %s: %w", family, table, n.Path(), err)
	}
	return true, nil
}

// HasChain reports whether the kernel has a chain. iptables-nft-save prints the built-in chains of a table also where there are none.
func HasChain(n *netns.Namespace, family, table, chain string) (bool, error) {
	fail := func(err error) (bool, error) {
		return false, fmt.Errorf("ask for chain %s %s %s in %s: %w", family, table, chain, n.Path(), err)
	}
	_, err := askNFT(n, family, table, func(t nf.Table) netlink.Message { return t.GetChain(chain) })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return fail(err)
	}
	return true, nil
}

// askNFT asks nf_tables about a table. The error is ENOENT for what is not there.
func askNFT(n *netns.Namespace, family, table string, request func(nf.Table) netlink.Message) ([]netlink.Message, error) {
	number, ok := familyNumber(family)
	if !ok {
		return nil, fmt.Errorf("unknown family %q", family)
	}
	nft := NFTables{NetNS: n.FD()}
	defer nft.Close()
	return nft.Ask(context.Background(), request(nf.Table{Family: number, Name: table}))
}

// Families are the names of nf_tables' families by their numbers (NFPROTO_*, include/uapi/linux/netfilter.h).
var Families = map[uint8]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_ARP: "arp", unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_BRIDGE: "bridge",
	unix.NFPROTO_IPV6: "ip6",
}

const nfgenLen = 4 // struct nfgenmsg

func familyNumber(name string) (uint8, bool) {
	for number, n := range Families {
		if n == name {
			return number, true
		}
	}
	return 0, false
}

// ruleHandle returns 0 for a rule of another chain: kernels before 4.19 do not filter a dump.
func ruleHandle(b []byte, chain string) (handle uint64, err error) {
	if len(b) < nfgenLen {
		return 0, fmt.Errorf("message of %d bytes is too short", len(b))
	}
	ad, err := netlink.NewAttributeDecoder(b[nfgenLen:])
	if err != nil {
		return 0, err
	}
	ad.ByteOrder = binary.BigEndian
	in := chain
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_HANDLE:
			handle = ad.Uint64()
		case unix.NFTA_RULE_CHAIN:
			in = ad.String()
		}
	}
	if in != chain {
		handle = 0
	}
	return handle, ad.Err()
}

// identifier is a name as nft's language has it (nft: src/scanner.l, string). The kernel takes any text for one, and whoever owns a
// namespace can use that; on nft's command line it may be an option, or another command.
var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_./\\-]*$`)

// IsIdentifier reports whether nft can be asked for a table or chain of that name.
func IsIdentifier(name string) bool { return identifier.MatchString(name) }

// RuleText returns a rule as nft shows it, "" where there is none with the handle.
func RuleText(ctx context.Context, n *netns.Namespace, family, table, chain string, handle uint64) (string, error) {
	if _, known := familyNumber(family); !known || !IsIdentifier(table) || !IsIdentifier(chain) {
		return "", fmt.Errorf("nft cannot be asked for chain %q of table %q %q", chain, family, table)
	}
	out, err := command(ctx, n, "", "nft", "-a", "list", "chain", family, table, chain)
	if err != nil {
		return "", err
	}
	end := fmt.Sprintf(" # handle %d", handle)
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutSuffix(strings.TrimSpace(line), end); ok {
			return text, nil
		}
	}
	return "", nil
}
