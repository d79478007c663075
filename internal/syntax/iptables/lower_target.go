package iptables

import "packetwalk.dev/internal/model/netfilter"

// decisions are the targets that are verdicts.
var decisions = map[string]*netfilter.Decision{
	"ACCEPT": {Verdict: netfilter.Verdict{Kind: netfilter.Accept}},
	"DROP":   {Verdict: netfilter.Verdict{Kind: netfilter.Drop}},
	"RETURN": {Verdict: netfilter.Verdict{Kind: netfilter.Return}},
	"QUEUE":  netfilter.HandTo("the reader of queue 0"),
}

// target lowers what a rule does; nil where that is nothing.
func (l *lowerer) target(r *Rule) netfilter.Statement {
	t := &r.Target
	switch {
	case t.Name == "":
		return nil
	case t.Goto || l.chains[t.Name] != nil:
		return l.jump(t)
	}
	if d, ok := decisions[t.Name]; ok && len(t.Options) == 0 {
		return d
	}
	e, ok := targetExtensions[t.Name]
	switch {
	case !ok && len(t.Options) == 0:
		return l.jump(t) // to a chain that is not there
	case e.note != "":
		return &netfilter.Note{Words: e.note, Tracks: targetTracking(t.Name) == netfilter.Tracks}
	case e.lower != nil:
		if s := e.lower(l, t); s != nil {
			return s
		}
	}
	return &netfilter.UnknownEffect{Text: string(appendOptions([]byte("-j "+t.Name), t.Options)), Tracking: targetTracking(t.Name)}
}

func (l *lowerer) jump(t *Target) *netfilter.JumpTo {
	key := jump{t.Name, t.Goto}
	j := l.jumps[key]
	if j == nil {
		j = &netfilter.JumpTo{Name: t.Name, Chain: l.chains[t.Name], Goto: t.Goto}
		l.jumps[key] = j
	}
	return j
}

// single returns a target's only option.
func (t *Target) single() (name, arg string) {
	if len(t.Options) != 1 || t.Options[0].Not {
		return "", ""
	}
	return t.Options[0].Name, t.Options[0].arg()
}
