package excerpt

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/capture/pastedtext"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/nfttext"
)

// NFT gives rules in nft's own syntax as "nft -j list ruleset" prints them.
type NFT = nfttext.Loader

// nftBlocks has nft read all blocks in its own syntax together. What it cannot read of a rule is a test or an effect that is not understood.
func (rd *reader) nftBlocks(blocks []pastedtext.Block) error {
	var all []nfttext.Block
	whole := false
	for _, b := range blocks {
		whole = whole || b.IsWhole()
		one := b.NFT()
		for i := range one.Lines {
			text := &one.Lines[i].Text
			*text = natTo.ReplaceAllStringFunc(*text, func(found string) string {
				m := natTo.FindStringSubmatch(found)
				return m[1] + rd.redacted(m[2], strings.Contains(m[1], "ip6")).String() + m[3]
			})
		}
		all = append(all, one)
	}
	result, err := nfttext.Read(all, rd.nft)
	if err != nil {
		return err
	}
	if _, err := rd.Read(files[pastedtext.NFTJSON], result.JSON); err != nil {
		return fmt.Errorf("read what nft printed: %w", err)
	}
	for _, l := range result.NotRead {
		rd.account.NotRead(l.Line, l.Why)
	}
	for _, line := range result.Earlier {
		rd.account.NoEffect(line, "shown again below")
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
