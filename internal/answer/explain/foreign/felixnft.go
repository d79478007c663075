package foreign

import (
	"strings"

	"packetwalk.dev/internal/model/attribution"
)

// nftWords are nft's words for the tests and targets of felix's rules in iptables mode, the more specific first.
var nftWords = strings.NewReplacer(
	"--set-xmark 0x10000/0x10000", "meta mark set meta mark | 0x00010000",
	"--set-xmark 0x20000/0x20000", "meta mark set meta mark | 0x00020000",
	"--set-xmark 0x40000/0x40000", "meta mark set meta mark | 0x00040000",
	"--set-xmark 0x0/{bit}", "meta mark set meta mark & {bit} comment *",
	"--set-xmark 0x0/*", "meta mark set meta mark & *",
	"--set-xmark *", "meta mark set *",
	"--mark *", "meta mark & *",
	"--ctstate RELATED,ESTABLISHED", "ct state established,related",
	"--ctstate INVALID", "ct state invalid",
	"-o {link}", "oifname {link}",
)

// felixNFT describes the rules of felix in nftables mode (felix/nftables), which 3.29 began. They are those of iptables mode in nft's
// words, all in table "calico": a chain's name there begins with the name of the iptables table. A rule has one comment, the hash and the
// words.
func felixNFT(pools []Pool) attribution.Writer {
	w := felix(pools)
	w.Name, w.File, w.Always = "Calico's felix, nftables mode", "internal/answer/explain/foreign/felixnft.go", ""
	w.Words["bit"], w.Words["layer"], w.Words["hook"] = "0xfffbffff|0xfff7ffff|0xffefffff", "nat|mangle", "INPUT|FORWARD|OUTPUT"
	var chains []attribution.Chain
	for _, c := range w.Chains {
		if strings.HasSuffix(c.Name, "-{branch}") {
			continue
		}
		var rules []attribution.Line
		for _, l := range c.Rules {
			if !older(c.Name, l) {
				rules = append(rules, inNFT(c.Table, l))
			}
		}
		c.Name, c.Table, c.Rules = c.Table+"-"+c.Name, "calico", rules
		chains = append(chains, c)
	}
	w.Chains = append(chains, attribution.Chain{Table: "calico", Name: "{layer}-{hook}", For: "nothing of Calico's begins here"})
	return w
}

// older reports whether only releases without nftables mode write a line's rules, or only those that shorten names for iptables.
func older(chain string, l attribution.Line) bool {
	return strings.HasSuffix(l.To, "-_{hash}") || l.For == "Calico: its policies begin" || l.For == "Calico: allowed by the rule before" ||
		chain == "cali-tw-{link}" && strings.HasPrefix(l.Comment, "Drop {tunnel}")
}

// inNFT returns a line of a table of iptables in nftables mode.
func inNFT(table string, l attribution.Line) attribution.Line {
	switch {
	case strings.HasSuffix(l.To, "-{branch}"):
		return attribution.Line{Text: "* vmap *", For: "Calico: finds the pod by its interface"}
	case strings.HasPrefix(l.To, "cali-"):
		l.To = table + "-" + l.To
	case l.To == "MARK":
		l.To = ""
		if l.Text == "" {
			l.Text = "--set-xmark *"
		}
	case l.To == "LOG":
		l.To, l.Text = "", "log * level *"
	case l.To == "NFLOG":
		l.To, l.Text = "", "log * group *"
	default:
		l.To = strings.ToLower(l.To)
	}
	l.Text = nftWords.Replace(l.Text)
	return l
}
