package iptables

import "strings"

var commentMatch = matchExtension{
	options: spec("comment"),
	lower:   func(*lowerer, *Match) bool { return true },
	listed:  map[string]listedMatch{"/*": (*restReader).comment},
}

func (l *restReader) comment(not bool) bool {
	text, rest, ok := strings.Cut(l.rest, " */")
	text, ok2 := strings.CutPrefix(text, " ")
	if !ok || !ok2 || not || rest != "" && rest[0] != ' ' {
		return false
	}
	l.rest = rest
	l.rule.Matches = append(l.rule.Matches, CommentMatch(text))
	return true
}
