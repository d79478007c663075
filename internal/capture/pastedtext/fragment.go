package pastedtext

import (
	"bytes"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/syntax/nfttext"
)

// Contents are the parts of a machine's state that a text shows: lines copied from a terminal or an article.
type Contents struct {
	Tables           []iptables.Table // IPv4's
	IPv6             []iptables.Table // ip6tables'
	Assumed          []assumption
	Blocks           []Block // output of other programs, for their own parsers
	Whole, IPv6Whole SavedTables
	// Legacy are the tables of the legacy variant, where the text shows those of both.
	Legacy []LegacyTables
	// Beside says that the machine has tables of the other iptables, nf_tables' or legacy, which the text does not show.
	Beside  bool
	Account Fates
}

// LegacyTables are the tables of one family that a machine has beside those of nf_tables.
type LegacyTables struct {
	Family netfilter.Family
	Tables []iptables.Table
	Whole  SavedTables
}

// Block is a part of the text that another program printed.
type Block struct {
	Kind BlockKind
	Line int    // of its first line, from 1
	Text []byte // its lines without the blanks and marks of quotation in front
	// numbers are the lines of the text, one for each line of Text.
	numbers []int
	// Filtered says that the output went through another program: lines may be missing.
	Filtered bool
	from     origin
	command  ipCommand
	whole    bool   // a command listed all of its state
	form     string // of a link's listing: the program that ip replaced, or the family that was asked for; "" for "ip addr"
	nft      nftOf
	prompt   int    // the line of the prompt above; 0 for none
	JSON     bool   // of ip -j
	verb     string // of the command that makes the route: "replace"; "" for what a program printed
}

// add adds a line.
func (b *Block) add(number int, line string) {
	b.Text, b.numbers = append(append(b.Text, line...), '\n'), append(b.numbers, number)
}

func (b *Block) lines() []string {
	return strings.Split(strings.TrimSuffix(string(b.Text), "\n"), "\n")
}

// BlockKind is the program and form of a block.
type BlockKind string

// The blocks that are recognised.
const (
	IPSetList     BlockKind = "ipset list"
	IPSetSave     BlockKind = "ipset save"
	IPRoute       BlockKind = "ip route"
	IPAddress     BlockKind = "ip addr"
	IPRule        BlockKind = "ip rule"
	ConntrackList BlockKind = "conntrack -L"
	SysctlList    BlockKind = "sysctl"
	EBTablesSave  BlockKind = "ebtables-save"
	ARPTablesSave BlockKind = "arptables-save"
	NFTJSON       BlockKind = "nft -j list ruleset"
	NFTText       BlockKind = "nft list ruleset"
	NFTCommand    BlockKind = "nft add"
	IPVSList      BlockKind = "ipvsadm -Ln"
	BridgeFDB     BlockKind = "bridge fdb"
)

// ErrNothingFound is returned for a text without a line that any program is known to print.
var ErrNothingFound = errors.New("no rule, set, route or connection in the text; want output of iptables-save, iptables -S, iptables -L, ipset list, " +
	"nft list ruleset, ebtables-save, ip route, ip addr, ipvsadm -Ln or conntrack -L")

// besideNote is what iptables-save and iptables print where the machine has tables of the other variant (iptables: nft-shared.c and
// xtables-save.c).
var besideNote = regexp.MustCompile(`(?m)^# Warning: ip6?tables-legacy tables present|^# Table .* is incompatible`)

// besideNotRead marks the lines that tell of tables of the other variant, unless the text shows them.
func (c *Contents) besideNotRead() {
	nft := slices.ContainsFunc(c.Blocks, func(b Block) bool { return b.Kind == NFTText || b.Kind == NFTJSON })
	for i := 0; c.Beside && i < len(c.Account.lines); i++ {
		legacy := strings.Contains(c.Account.lines[i].text, "-legacy")
		if besideNote.MatchString(c.Account.lines[i].text) && (legacy && len(c.Legacy) == 0 || !legacy && !nft) {
			c.Account.NotRead(i+1, "it reports tables that the text does not show")
		}
	}
}

// parse reads a text in which the output of iptables-save, iptables -S and iptables -L stands, whole or in part, between shell
// prompts, command lines and prose. A rule line is one that begins with -A, or one of a listing; a line that is shown again, by another
// command, is the same rule. Output from elsewhere than most of the rules, by its prompt or command, is left out. What the text does not
// say and what is known to be so everywhere is filled in, which Contents.Assumed tells each time. Where the rules are shown at several
// times, those of the last one at which they name one of the addresses that it is about are taken, else the last. machine is the one that
// is wanted, by its prompt. A complete iptables-save
// is read by [iptables.Parse] alone.
func (k *knownRules) parse(machine string, text []byte, about ...netip.Addr) (Contents, error) {
	v4, v6 := bytes.Contains(text, []byte("by iptables-save")), bytes.Contains(text, []byte("by ip6tables-save"))
	mixed := v4 && v6 || bytes.Contains(text, []byte("# Generated by ebtables-save")) ||
		bytes.Contains(text, []byte("# Generated by arptables-save"))
	beside := (bytes.Contains(text, []byte("tables present")) || bytes.Contains(text, []byte("is incompatible"))) && besideNote.Match(text)
	tables, err := iptables.Parse(text)
	ended := bytes.Count(text, []byte("\nCOMMIT\n")) == len(tables)
	byNFT := bytes.Contains(text, []byte("(nf_tables)"))
	if err == nil && len(tables) > 0 && !mixed && ended && !isEdited(tables) && !needsScan(text) {
		whole := SavedTables{names: map[string]bool{}}
		for i := range tables {
			whole.names[tables[i].Name] = true
		}
		whole.check(tables, byNFT)
		account := Fates{Account: accountOfSave(text)}
		if beside {
			account.lines = linesOf(text)
		}
		if v6 || !v4 && familyOfTables(tables) == 6 {
			return Contents{IPv6: tables, IPv6Whole: whole, Beside: beside, Account: account}, nil
		}
		return Contents{Tables: tables, Whole: whole, Beside: beside, Account: account}, nil
	}
	s := scanner{known: k, Fates: Fates{lines: linesOf(text)}}
	s.scan()
	s.settleProse(about)
	s.endTables()
	s.endRules()
	if err := s.chooseHost(machine); err != nil {
		return Contents{}, err
	}
	if err := s.leaveOut(machine); err != nil {
		return Contents{}, err
	}
	s.chooseTime(about)
	s.settle()
	s.settleMadeRoutes()
	f := Contents{Blocks: s.blocks, Beside: beside, Account: s.Fates}
	for _, family := range []int{4, 6} {
		runs := s.runs(family)
		if len(runs) == 0 {
			continue
		}
		if legacy, others := splitLegacy(runs); len(legacy) > 0 && len(others) > 0 {
			b := builder{known: k, runs: legacy, account: s.Fates}
			b.build()
			f.Legacy = append(f.Legacy, LegacyTables{map[int]netfilter.Family{4: netfilter.IPv4, 6: netfilter.IPv6}[family], b.tables, b.saved})
			s.all, runs = append(s.all, b.told()...), others
		}
		b := builder{known: k, runs: runs, byNFT: byNFT, account: s.Fates}
		b.build()
		if family == 4 {
			f.Tables, f.Whole = b.tables, b.saved
			s.all = append(s.all, b.told()...)
			continue
		}
		f.IPv6, f.IPv6Whole = b.tables, b.saved
		for _, a := range b.told() {
			s.note(a.Kind, a.Line, "ip6tables: %s", a.Text)
		}
	}
	f.Assumed = s.told()
	if len(f.Tables)+len(f.IPv6)+len(f.Blocks) == 0 {
		return Contents{}, ErrNothingFound
	}
	return f, nil
}

// accountOfSave returns the account of a whole iptables-save, of which each line is read or a comment.
func accountOfSave(text []byte) snapshot.Account {
	var a snapshot.Account
	for line := range bytes.Lines(text) {
		one := snapshot.TextLine{As: "iptables-save"}
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			one = snapshot.TextLine{Fate: snapshot.LineNoEffect, As: "comment"}
		}
		a = append(a, one)
	}
	return a
}

// splitLegacy splits runs where the text shows the rules of both variants of iptables, which a machine may have beside each other.
func splitLegacy(runs []*run) (legacy, others []*run) {
	if !slices.ContainsFunc(runs, func(r *run) bool { return r.variant == "nft" }) {
		return nil, runs
	}
	for _, r := range runs {
		if r.variant == "legacy" {
			legacy = append(legacy, r)
		} else {
			others = append(others, r)
		}
	}
	return legacy, others
}

// isEdited reports whether a rule may differ from what iptables-save printed: its target is cut off, or text was added after it.
func isEdited(tables []iptables.Table) bool {
	for r := range Rules([][]iptables.Table{tables}) {
		if r.Unknown != "" || isCutOff(r) {
			return true
		}
	}
	return false
}

func familyOfTables(tables []iptables.Table) int {
	for r := range Rules([][]iptables.Table{tables}) {
		if f := r.Family(); f != 0 {
			return f
		}
	}
	return 0
}

// Parse reads a text. See knownRules.parse.
func Parse(book *attribution.Book, machine string, text []byte, about ...netip.Addr) (Contents, error) {
	c, err := newKnownRules(book).parse(machine, text, about...)
	c.besideNotRead()
	return c, err
}

// Numbers returns the numbers of a block's lines in the text.
func (b *Block) Numbers() []int { return b.numbers }

// IsWhole reports whether the block is from a listing of all rules of nft.
func (b *Block) IsWhole() bool { return b.whole && b.Kind == NFTText }

// IPv6 reports whether the block's command asked for IPv6.
func (b *Block) IPv6() bool { return b.command.ipv6 }

// Table returns the table of routes that the block's command asked for; "" for main or all.
func (b *Block) Table() string { return strings.TrimPrefix(b.command.table, "all") }

// OfVRF reports whether the block shows the routes of a VRF, of which the text does not tell the table.
func (b *Block) OfVRF() bool { return b.command.vrf }

// Routes returns the routes' text, with the table that the command asked for.
func (b *Block) Routes() string { return b.command.withTable(string(b.Text)) }

// NFT returns a block in nft's own syntax.
func (b *Block) NFT() nfttext.Block {
	one := nfttext.Block{Family: b.nft.family, Table: b.nft.table, Command: b.Kind == NFTCommand, Whole: b.nft.tables}
	for i, text := range b.lines() {
		one.Lines = append(one.Lines, nfttext.Line{Number: b.numbers[i], Text: text})
	}
	return one
}
