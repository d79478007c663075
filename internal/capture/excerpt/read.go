package excerpt

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/pastedtext"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iproute"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/syntax/nftables"
)

// notShown is why a part of a partial snapshot is missing.
const notShown = "not in the text"

// Read makes a snapshot of one host, "node/NAME", out of a text that shows some of its state: an iptables-save, or lines of one, or of
// iptables -L, nft list ruleset, ipset list, ip route, ip addr, conntrack -L, as people copy them out of a terminal. What the text shows
// counts most, then what the book says is so on every machine. Host.Assumed says each thing that is not from the text, Host.Missing what
// is not known at all, Host.Partial of what there may be more, and so do chains (netfilter.Chain.Partial). nft reads nft's own syntax; nil
// where that cannot be read.
//
// Of several machines that the text shows, the one called name is taken if it is one of them. about are the destinations that the snapshot
// is wanted for, port 0 for any: a text may show rules at several times, see [parse], and rules for the machine's own addresses, which it
// need not show. The error is pastedtext.ErrNothingFound for a text that shows nothing, and another if nothing that it shows can be read.
func Read(book *attribution.Book, nft NFT, name string, text []byte, about ...netip.AddrPort) (snapshot.Source, error) {
	addresses := make([]netip.Addr, len(about))
	for i, a := range about {
		addresses[i] = a.Addr()
	}
	shows, err := pastedtext.Parse(book, name, text, addresses...)
	if err != nil {
		return nil, err
	}
	rd := reader{Loader: capture.NewLoader("node/" + name), nft: nft}
	for _, part := range snapshot.Parts {
		rd.Host.Missing[part] = notShown
	}
	rd.account = shows.Account
	dialect := netfilter.IPTablesLegacy
	if bytes.Contains(text, []byte("(nf_tables)")) || bytes.Contains(text, []byte("by xtables-save")) ||
		listsForeign(shows.Blocks) || tableOfIPTables.Match(text) || len(shows.Legacy) > 0 {
		dialect = netfilter.IPTablesNFT // iptables-save's first line says its variant
	}
	if err := rd.rules(&shows, dialect); err != nil {
		return nil, err
	}
	if err := rd.blocks(latest(shows.Blocks)); err != nil && len(shows.Tables)+len(shows.IPv6) == 0 {
		return nil, err // nothing is left
	}
	rd.finishFIB()
	rd.beyond(shows.Tables, shows.IPv6)
	for _, a := range about {
		rd.assumeOwnAddress(a)
	}
	rd.Host.Account = rd.account.Account
	return singleSource{rd.Finish()}, nil
}

// singleSource is a Source of one host.
type singleSource struct{ host *snapshot.Host }

func (s singleSource) Host(name string) (*snapshot.Host, error) {
	if name != s.host.Name {
		return nil, snapshot.NotFound(name, s.Names())
	}
	return s.host, nil
}
func (s singleSource) Names() []string           { return []string{s.host.Name} }
func (s singleSource) Objects() snapshot.Objects { return snapshot.Objects{} }

// reader reads a text's parts into one host.
type reader struct {
	*capture.Loader
	nft     NFT
	account pastedtext.Fates
	tables  []*netfilter.Table // of iptables
	hidden  bool               // an address of the machine's is redacted
}

func (rd *reader) rules(e *pastedtext.Contents, d netfilter.Dialect) error {
	for _, of := range []struct {
		tables []iptables.Table
		whole  pastedtext.SavedTables
		family netfilter.Family
		part   snapshot.Part
	}{{e.Tables, e.Whole, netfilter.IPv4, snapshot.Rules}, {e.IPv6, e.IPv6Whole, netfilter.IPv6, snapshot.RulesIPv6}} {
		if len(of.tables) == 0 {
			continue
		}
		rd.nameTargets(of.tables)
		lowered, err := iptables.Lower(pastedtext.WithUnshown(of.tables, of.whole, e.Beside), of.family, d)
		if err != nil {
			return err
		}
		rd.AddTables(lowered...)
		rd.tables = append(rd.tables, lowered...)
		delete(rd.Host.Missing, of.part)
	}
	for _, legacy := range e.Legacy {
		lowered, err := iptables.Lower(pastedtext.WithUnshown(legacy.Tables, legacy.Whole, false), legacy.Family, netfilter.IPTablesLegacy)
		if err != nil {
			return err
		}
		rd.AddTables(lowered...)
		rd.tables = append(rd.tables, lowered...)
	}
	if e.Beside {
		rd.Assume("iptables reports tables that the text does not show")
	}
	for _, a := range e.Assumed {
		rd.Assume("%s", a.Text)
	}
	return nil
}

// latest leaves out earlier listings of a set that is listed again.
func latest(blocks []pastedtext.Block) []pastedtext.Block {
	last := map[string]int{}
	name := func(b pastedtext.Block) string {
		line, _, _ := bytes.Cut(b.Text, []byte("\n"))
		return string(bytes.TrimSpace(line))
	}
	for i, b := range blocks {
		if b.Kind == pastedtext.IPSetList {
			last[name(b)] = i
		}
	}
	var out []pastedtext.Block
	for i, b := range blocks {
		if b.Kind != pastedtext.IPSetList || last[name(b)] == i {
			out = append(out, b)
		}
	}
	return out
}

// tableOfIPTables matches what nft says above a table of iptables-nft.
var tableOfIPTables = regexp.MustCompile(`(?m)^\s*# Warning: table \S+ \S+ is managed by iptables-nft`)

// ofIPTables matches the head of a table of iptables-nft with a chain that is built in.
var ofIPTables = regexp.MustCompile(`^table ip6? (?:nat|filter|mangle|raw|security) \{\s*chain (?:PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING) \{`)

// listsForeign reports whether nft lists tables that another iptables than the legacy one made.
func listsForeign(blocks []pastedtext.Block) bool {
	return slices.ContainsFunc(blocks, func(b pastedtext.Block) bool {
		if b.Kind == pastedtext.NFTText {
			return ofIPTables.Match(b.Text)
		}
		if b.Kind != pastedtext.NFTJSON {
			return false
		}
		listed, err := nftables.Parse(b.Text)
		return err == nil && len(listed.Foreign()) > 0
	})
}

// files are the texts of a capture that say the same as a kind of block.
var files = map[pastedtext.BlockKind]string{
	pastedtext.EBTablesSave: "ebtables-save.txt", pastedtext.NFTJSON: "nft.json", pastedtext.IPSetList: "ipset.txt", pastedtext.IPSetSave: "ipset.txt",
	pastedtext.ConntrackList: "conntrack.txt", pastedtext.SysctlList: capture.SysctlsFile,
}

// read reads a block, and says what part of the host's state it is.
func (rd *reader) read(b pastedtext.Block) (snapshot.Part, error) {
	if b.OfVRF() {
		return "", errors.New("which table the VRF has is unknown")
	}
	if b.JSON {
		return rd.ofJSON(b)
	}
	switch b.Kind {
	case pastedtext.ARPTablesSave:
		return "", errors.New("the walk does not know it")
	case pastedtext.IPRoute:
		rd.routes(b)
		return snapshot.Routes, nil
	case pastedtext.IPAddress:
		return snapshot.Addresses, rd.addresses(b)
	case pastedtext.BridgeFDB:
		entries, err := iproute.ParseFDBText(string(b.Text))
		rd.Host.FIB.FDB = append(rd.Host.FIB.FDB, entries...)
		return snapshot.FDB, err
	case pastedtext.IPVSList:
		return snapshot.IPVS, rd.virtualServices(b)
	case pastedtext.IPRule:
		return snapshot.Policy, rd.policy(b)
	}
	return rd.Read(files[b.Kind], b.Text)
}

// blocks reads what other programs printed. The error says why none could be read.
func (rd *reader) blocks(blocks []pastedtext.Block) error {
	var errs []error
	var nft []pastedtext.Block
	failed := func(b *pastedtext.Block, err error) {
		rd.Assume("line %d: %s is left out: %v", b.Line, b.Kind, err)
		for _, n := range b.Numbers() {
			rd.account.NotRead(n, err.Error())
		}
		errs = append(errs, fmt.Errorf("line %d: %s: %w", b.Line, b.Kind, err))
	}
	for i := range blocks {
		b := &blocks[i]
		if b.Kind == pastedtext.NFTText || b.Kind == pastedtext.NFTCommand {
			nft = append(nft, *b)
		} else if err := rd.block(b); err != nil {
			failed(b, err)
		}
	}
	if len(nft) > 0 {
		if err := rd.nftBlocks(nft); err != nil {
			for i := range nft {
				failed(&nft[i], err)
			}
		}
	}
	if len(errs) < len(blocks) {
		return nil
	}
	return errors.Join(errs...)
}

// block reads what another program printed.
func (rd *reader) block(b *pastedtext.Block) error {
	part, err := rd.read(*b)
	switch {
	case err != nil:
		return err
	case b.Kind == pastedtext.SysctlList:
		rd.sysctls()
	case b.Kind == pastedtext.EBTablesSave:
		delete(rd.Host.Missing, part)
		if b.Filtered || bytes.Count(b.Text, []byte("*")) < 2 && !bytes.HasPrefix(b.Text, []byte("# Generated")) {
			rd.Host.Partial[part] = "the text does not show all tables"
		}
	case b.Kind == pastedtext.IPAddress && len(rd.Host.FIB.Addresses) == 0: // of ip link
		delete(rd.Host.Missing, snapshot.Links)
	case b.Kind == pastedtext.IPSetList || b.Kind == pastedtext.IPSetSave:
		delete(rd.Host.Missing, part)
		rd.cutSets(*b)
	case (b.Filtered || b.Kind == pastedtext.IPAddress && rd.hidden) && (b.Kind == pastedtext.IPAddress || b.Kind == pastedtext.IPRoute || b.Kind == pastedtext.IPRule || b.Kind == pastedtext.ConntrackList):
		rd.noteSome(part, "only some are in the text")
	default:
		delete(rd.Host.Missing, part)
		if b.Kind == pastedtext.IPAddress {
			delete(rd.Host.Missing, snapshot.Links)
		}
	}
	return nil
}

// noteSome says of a part that the text shows only some of it, unless the text shows all of it elsewhere.
func (rd *reader) noteSome(part snapshot.Part, why string) {
	if rd.Host.Missing[part] != "" {
		rd.Host.Missing[part] = why
	}
}

// cutSets gives the sets of which the text may not show every member one that may be any.
func (rd *reader) cutSets(b pastedtext.Block) {
	text := string(b.Text)
	entries := 0
	if m := setEntries.FindStringSubmatch(text); m != nil {
		entries, _ = strconv.Atoi(m[1])
	}
	_, members, shown := strings.Cut(text, "Members:\n")
	if b.Kind == pastedtext.IPSetList && shown && !b.Filtered && strings.Count(members, "\n") >= entries || b.Kind == pastedtext.IPSetSave && !b.Filtered {
		return
	}
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "Name:" && words[0] != "create" && words[0] != "-N" {
			continue
		}
		if set := rd.Host.IPSets[words[1]]; set != nil {
			any := netfilter.Element{Unsure: true}
			for range set.Fields {
				any.Key = append(any.Key, netfilter.Span{High: netfilter.AllOnes})
			}
			set.Elements = append(set.Elements, any)
			rd.Assume("line %d: members of ipset %s are missing; whether it has others is unknown", b.Line, words[1])
		}
	}
}

// setEntries is how many members a set has.
var setEntries = regexp.MustCompile(`(?m)^Number of entries: ([0-9]+)$`)

// sysctls notes that a text has few of them, and assumes that the host forwards packets unless they say that it does not.
func (rd *reader) sysctls() {
	rd.Host.Missing[snapshot.Sysctls] = "only some are in the text"
	if rd.Host.Sysctls["net.ipv4.ip_forward"] == "0" {
		delete(rd.Host.Missing, snapshot.Sysctls)
	}
}

// finishFIB adds what the kernel keeps beside the routes and addresses that are shown.
func (rd *reader) finishFIB() {
	s := rd.Host.FIB
	rd.mainNotShown()
	rd.virtualAddresses()
	rd.usualRules()
	rd.tablesNotShown()
	if len(s.Routes) > 0 && rd.Host.Missing[snapshot.Addresses] != "" {
		names := rd.sources()
		if names == "" {
			rd.Assume("no addresses in the text; assuming no address is its own")
		} else {
			rd.Assume("assuming its addresses are the sources of its routes: %s", names)
		}
	}
	rd.localRoutes()
	rd.linksOfRoutes()
}

// SeveralHostsError says that a text shows several hosts, and no prompt tells which one is meant.
type SeveralHostsError = pastedtext.SeveralHostsError
