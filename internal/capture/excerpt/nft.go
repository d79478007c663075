package excerpt

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/nfttext"
)

// NFT gives rules in nft's own syntax as "nft -j list ruleset" prints them.
type NFT = nfttext.Loader

// nftBlocks has nft read all blocks in its own syntax together. What it cannot read of a rule is a test or an effect that is not understood.
func (rd *reader) nftBlocks(blocks []block) error {
	var all []nfttext.Block
	whole := false
	for _, b := range blocks {
		whole = whole || b.whole
		one := nfttext.Block{Family: b.nft.family, Table: b.nft.table, Command: b.Kind == nftCommand}
		for i, text := range b.lines() {
			text = natTo.ReplaceAllStringFunc(text, func(found string) string {
				m := natTo.FindStringSubmatch(found)
				return m[1] + rd.redacted(m[2], strings.Contains(m[1], "ip6")).String() + m[3]
			})
			one.Lines = append(one.Lines, nfttext.Line{Number: b.numbers[i], Text: text})
		}
		all = append(all, one)
	}
	result, err := nfttext.Read(all, rd.nft)
	if err != nil {
		return err
	}
	if _, err := rd.Read(files[nftJSON], result.JSON); err != nil {
		rd.Host.Partial[snapshot.NFT] = err.Error()
	}
	for _, l := range result.NotRead {
		rd.account.notRead(l.Line, l.Why)
	}
	for _, line := range result.Earlier {
		rd.account.noEffect(line, "shown again below")
	}
	for _, a := range result.Assumed {
		rd.Assume("%s", a)
	}
	if result.Commands > 0 {
		rd.Assume("nft: assuming its commands were run")
	}
	delete(rd.Host.Missing, snapshot.NFT)
	if !whole && rd.Host.Partial[snapshot.NFT] == "" {
		rd.Host.Partial[snapshot.NFT] = "the text does not show all tables"
	}
	rd.markUnread(result)
	return nil
}

// markUnread gives rules the parts that nft could not read.
func (rd *reader) markUnread(result *nfttext.Result) {
	for _, t := range rd.Host.Rules.Tables {
		for _, c := range t.Chains {
			for i := range c.Rules {
				r := &c.Rules[i]
				m := result.MarkOf(r.Comment)
				if m == nil {
					continue
				}
				r.Text, r.Comment = m.Rule, ""
				if m.Test != "" && m.Effect == "" && len(r.Statements) > 0 {
					r.Statements = slices.Insert(slices.Clone(r.Statements), len(r.Statements)-1, netfilter.Statement(&netfilter.UnknownTest{Text: m.Test, Tracking: netfilter.Tracks}))
				} else if m.Test != "" {
					r.Statements = append(r.Statements, &netfilter.UnknownTest{Text: m.Test, Tracking: netfilter.Tracks})
				}
				if m.Effect != "" {
					r.Statements = append(r.Statements, &netfilter.UnknownEffect{Text: m.Effect, Tracking: netfilter.Tracks})
				}
				rd.Assume("%s: nft cannot read a part of it: %s", c.Ref(r), cmp.Or(m.Test, m.Effect))
			}
		}
	}
}

// natTo is the place of a translation where an address stands.
var natTo = regexp.MustCompile(`(\b[sd]nat\s+(?:ip6?\s+)?to\s+)([0-9.]*[xX*][xX*.0-9]*|<[^>]+>)((?::\S+)?)`)

// nftListing is "nft list chain ip nat POSTROUTING", and what it lists without a name.
var nftListing = regexp.MustCompile(`(?:^|[\s/])nft\s(?:-\S+\s+)*list\s+` +
	`(?:(ruleset)(\s+(?:ip|ip6|inet|bridge|arp|netdev)\b)?|(?:chain|table)\s+(?:(ip|ip6|inet|bridge|arp|netdev)\s+)?([\w.-]+))`)

// nftOf is what an nft command asked for.
type nftOf struct {
	family, table string // "" for none
	ruleset       bool   // of all families
}

// parseNFT reads a command line; the zero value is for any other command.
func parseNFT(command string) nftOf {
	m := nftListing.FindStringSubmatch(command)
	if m == nil {
		return nftOf{}
	}
	return nftOf{family: cmp.Or(m[3], "ip"), table: m[4], ruleset: m[1] != "" && m[2] == ""}
}

// nftMade takes a command that adds rules, with or without the program's name: "nft add rule ip nat postrouting masquerade".
func (s *scanner) nftMade(line string) bool {
	command, _ := commandOf(line)
	command = strings.TrimPrefix(strings.TrimPrefix(command, "sudo "), "nft ")
	if strings.HasPrefix(command, "-a ") {
		command = command[3:]
	}
	command = strings.NewReplacer(`'`, "", `\`, "").Replace(command)
	if n := len(command); n > 1 && command[0] == '"' && command[n-1] == '"' {
		command = command[1 : n-1]
	}
	if !nfttext.CommandLine.MatchString(command) || nfttext.Braces(command) != 0 {
		return false
	}
	s.addLine(nftCommand, true, command)
	return true
}
