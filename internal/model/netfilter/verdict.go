package netfilter

// Decision is the statement that ends a rule with a verdict: ACCEPT, DROP, RETURN, REJECT, a queue, an unknown target.
type Decision struct {
	Verdict
	Words string // in plain words; "" for the verdict's name
}

// HandTo returns the decision of a rule that gives the packet to a program, or out past the other rules: what that does is not known.
func HandTo(who string) *Decision {
	return &Decision{Verdict: Verdict{Kind: Undecided, Detail: "what " + who + " does is not known"}, Words: "hand to " + who}
}

// Eval gives the verdict.
func (d *Decision) Eval(*Context) Verdict { return d.Verdict }

// Effect tells that it decides.
func (d *Decision) Effect() EffectKind { return Decides }

// String returns the decision in words.
func (d *Decision) String() string {
	switch {
	case d.Words != "":
		return d.Words
	case d.Detail != "":
		return d.Kind.String() + " " + d.Detail
	}
	return d.Kind.String()
}

// JumpTo continues with another chain. Without a Chain, which a partial dump may lack, it is unknown what happens.
type JumpTo struct {
	Name  string
	Chain *Chain
	Goto  bool // it returns to where the present chain would
}

// Eval jumps. What a chain does whose rules are not known is asked: it returns, and the walk goes on after it, or it decides.
func (j *JumpTo) Eval(c *Context) Verdict {
	switch {
	case j.Chain == nil && c.ask(Unknown, c.unknown(unknownChain{j}), Option{Label: "returns"}, Option{Label: "decides"}) != 0:
		return Verdict{Kind: Undecided, Detail: "chain " + j.Name + " is not shown"}
	case j.Chain == nil && j.Goto:
		return Verdict{Kind: Return}
	case j.Chain == nil:
		return Verdict{Kind: Continue}
	case j.Goto:
		return Verdict{Kind: Goto, Chain: j.Chain}
	}
	return Verdict{Kind: Jump, Chain: j.Chain}
}

// Effect tells that it decides.
func (j *JumpTo) Effect() EffectKind { return Decides }

func (j *JumpTo) String() string {
	if j.Goto {
		return "go to chain " + j.Name
	}
	return "jump to chain " + j.Name
}

// Note is an effect that a walk does not see: LOG, NFLOG, TRACE, an accounting object, a set of recent addresses.
type Note struct {
	Words string
	// Remembers tells that it changes a set or a map, in which rules may find later packets.
	Remembers bool
	Tracks    bool // makes the kernel track connections
}

// Eval goes on.
func (n *Note) Eval(*Context) Verdict { return Verdict{} }

// Effect tells that there is none.
func (n *Note) Effect() EffectKind { return NoEffect }

func (n *Note) String() string { return n.Words }

// unknownChain is a jump to a chain whose rules are not known.
type unknownChain struct{ *JumpTo }

func (u unknownChain) String() string { return "chain " + u.Name + ", which is not shown" }
