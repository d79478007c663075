package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/syntax/nftables"
)

// notShown is why a part of a partial snapshot is missing.
const notShown = "not in the text"

// Partial makes a snapshot of one host, "node/NAME", out of a text that shows some of its state: an iptables-save, or lines of one, or of
// iptables -L, ipset list, ip route, ip addr, conntrack -L, as people copy them out of a terminal. What the text shows counts most, then
// what is well known of kube-proxy, the ip-masq-agent and Calico; [Host.Assumed] says each thing that is not from the text, and
// [Host.Missing] what is not known at all. about are the destinations that the snapshot is wanted for, port 0 for any: a text may show rules
// at several times, see [iptables.ParseFragment], and rules for the machine's own addresses, which it need not show. The error is iptables.ErrNothingFound for a text that shows nothing.
func Partial(name string, text []byte, about ...netip.AddrPort) (Source, error) {
	addresses := make([]netip.Addr, len(about))
	for i, a := range about {
		addresses[i] = a.Addr()
	}
	excerpt, err := iptables.ParseFragment(text, addresses...)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	p := partial{loader: loader{host: &Host{
		Name: "node/" + name, FIB: &fib.State{}, Rules: &netfilter.Ruleset{}, IPSets: map[string]*netfilter.Set{}, Sysctls: map[string]string{},
		Missing: map[Part]string{},
	}}}
	for _, part := range []Part{Links, Addresses, Routes, Policy, Neighbours, FDB, Rules, RulesIPv6, NFT, Bridge, IPSets, Flows, Sysctls, Listeners, Wires} {
		p.host.Missing[part] = notShown
	}
	dialect := netfilter.IPTablesLegacy
	if bytes.Contains(text, []byte("(nf_tables)")) || bytes.Contains(text, []byte("by xtables-save")) || listsForeign(excerpt.Blocks) {
		dialect = netfilter.IPTablesNFT // iptables-save's first line says its variant
	}
	if err := p.rules(&excerpt, dialect); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	blocks := latest(excerpt.Blocks)
	if nftTextAlone(&excerpt) {
		return nil, fmt.Errorf("node %s: %w", name, errNFTText)
	}
	for _, b := range blocks {
		p.block(b)
	}
	p.finishFIB()
	p.beyond(excerpt.Tables, excerpt.IPv6)
	for _, a := range about {
		p.own(a, excerpt.Tables, excerpt.IPv6)
	}
	p.finish()
	return single{p.host}, nil
}

// single is a Source of one host.
type single struct{ host *Host }

func (s single) Host(name string) (*Host, error) {
	if name != s.host.Name {
		return nil, notFound(name, s.Names())
	}
	return s.host, nil
}
func (s single) Names() []string  { return []string{s.host.Name} }
func (s single) Objects() Objects { return Objects{} }

// partial reads a text's parts into one host.
type partial struct {
	loader
}

func (p *partial) assume(format string, args ...any) {
	p.host.Assumed = append(p.host.Assumed, fmt.Sprintf(format, args...))
}

func (p *partial) rules(e *iptables.Excerpt, d netfilter.Dialect) error {
	for _, of := range []struct {
		tables []iptables.Table
		family netfilter.Family
		part   Part
	}{{e.Tables, netfilter.IPv4, Rules}, {e.IPv6, netfilter.IPv6, RulesIPv6}} {
		if len(of.tables) == 0 {
			continue
		}
		lowered, err := iptables.Lower(of.tables, of.family, d)
		if err != nil {
			return err
		}
		p.saved = append(p.saved, lowered...)
		delete(p.host.Missing, of.part)
	}
	for _, a := range e.Assumed {
		p.assume("%s", a.Text)
	}
	return nil
}

// latest leaves out earlier listings of a set that is listed again.
func latest(blocks []iptables.Block) []iptables.Block {
	last := map[string]int{}
	name := func(b iptables.Block) string {
		line, _, _ := bytes.Cut(b.Text, []byte("\n"))
		return string(bytes.TrimSpace(line))
	}
	for i, b := range blocks {
		if b.Kind == iptables.IPSetList {
			last[name(b)] = i
		}
	}
	var out []iptables.Block
	for i, b := range blocks {
		if b.Kind != iptables.IPSetList || last[name(b)] == i {
			out = append(out, b)
		}
	}
	return out
}

// errNFTText is for texts with nothing but nft's own syntax.
var errNFTText = errors.New("the rules are in nft's own syntax, which is not read; want the output of nft -j list ruleset " +
	"(from such a file, as root: unshare -n sh -c 'nft -f FILE && nft -j list ruleset')")

func nftTextAlone(e *iptables.Excerpt) bool {
	other := slices.ContainsFunc(e.Blocks, func(b iptables.Block) bool { return b.Kind != iptables.NFTText })
	return len(e.Tables)+len(e.IPv6) == 0 && !other
}

// listsForeign tells whether nft lists tables that another iptables than the legacy one made.
func listsForeign(blocks []iptables.Block) bool {
	return slices.ContainsFunc(blocks, func(b iptables.Block) bool {
		if b.Kind != iptables.NFTJSON {
			return false
		}
		listed, err := nftables.Parse(b.Text)
		return err == nil && len(listed.Foreign()) > 0
	})
}

// block reads what another program printed.
func (p *partial) block(b iptables.Block) {
	var err error
	part := Part("")
	switch b.Kind {
	case iptables.EBSave:
		part, err = Bridge, loadEBTables(&p.loader, Output{Data: b.Text})
	case iptables.NFTJSON:
		part, err = NFT, loadNFT(&p.loader, Output{Data: b.Text})
	case iptables.NFTText:
		err = errNFTText
	case iptables.ARPSave:
		err = errors.New("the walk does not know it")
	case iptables.IPSetList, iptables.IPSetSave:
		part, err = IPSets, loadIPSets(&p.loader, Output{Data: b.Text})
	case iptables.Conntrack:
		part, err = Flows, loadFlows(&p.loader, Output{Data: b.Text})
	case iptables.Sysctl:
		if err = loadSysctls(&p.loader, Output{Data: b.Text}); err == nil {
			p.sysctls()
			return
		}
	case iptables.IPRoute:
		part, err = Routes, p.routes(b)
	case iptables.IPAddress:
		part, err = Addresses, p.addresses(b)
	case iptables.IPRule:
		part, err = Policy, p.policy(b)
	}
	if err != nil {
		p.assume("line %d: %s is left out: %v", b.Line, b.Kind, err)
		return
	}
	if b.Filtered && (b.Kind == iptables.IPAddress || b.Kind == iptables.IPRoute || b.Kind == iptables.IPRule) {
		p.host.Missing[part] = "only some are in the text"
		return
	}
	delete(p.host.Missing, part)
	if b.Kind == iptables.IPAddress {
		delete(p.host.Missing, Links)
	}
}

// sysctls are few in a text. That the host forwards packets is then assumed, unless they say that it does not.
func (p *partial) sysctls() {
	p.host.Missing[Sysctls] = "only some are in the text"
	if p.host.Sysctls["net.ipv4.ip_forward"] == "0" {
		delete(p.host.Missing, Sysctls)
	}
}

// finishFIB adds what the kernel keeps beside the routes and addresses that are shown.
func (p *partial) finishFIB() {
	s := p.host.FIB
	if len(s.Routes) > 0 && p.host.Missing[Addresses] != "" {
		names := p.sources()
		if names == "" {
			p.assume("none of its addresses are in the text: no address is taken as its own")
		} else {
			p.assume("its addresses are taken to be those that its routes give as source: %s", names)
		}
	}
	p.localRoutes()
	p.linksOfRoutes()
}
