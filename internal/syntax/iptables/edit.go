package iptables

// Edit is one table's change: what iptables-restore --noflush does in one transaction of that table. The steps happen in the order of the
// fields; everything that no field names stays as it is.
type Edit struct {
	Table string
	// Replace creates or empties each chain and gives it its rules.
	Replace []Chain
	// Remove takes rules out of chains that others own too: the first rule equal to it.
	Remove []SharedRule
	// Insert puts rules at the head of a chain, one after the other, so that the last one ends up first.
	Insert []SharedRule
	// Append puts rules at the end of a chain.
	Append []SharedRule
	// Delete removes chains, emptying them first.
	Delete []string
}

// SharedRule is a rule in a chain that others own too.
type SharedRule struct {
	Chain string
	Rule  Rule
}

// IsZero tells that the edit changes nothing.
func (e *Edit) IsZero() bool {
	return len(e.Replace)+len(e.Remove)+len(e.Insert)+len(e.Append)+len(e.Delete) == 0
}

// Rules counts the rules that the edit writes.
func (e *Edit) Rules() int {
	n := len(e.Insert) + len(e.Append)
	for i := range e.Replace {
		n += len(e.Replace[i].Rules)
	}
	return n
}

// Settle tells what has to leave a chain, which may be nil, so that a jump stands in it once, at a place that is right: every other rule
// that leads where the jump does. there says that the jump is at such a place.
func (c *Chain) Settle(jump SharedRule, right func(i int) bool) (stray []SharedRule, there bool) {
	if c == nil {
		return nil, false
	}
	copies := 0
	for i, r := range c.Rules {
		if r.Target.Name != jump.Rule.Target.Name {
			continue
		}
		same := r.Spec() == jump.Rule.Spec()
		if same {
			copies++
		}
		if same && !there && right(i) {
			there = true
			continue
		}
		r.Counters = nil
		stray = append(stray, SharedRule{Chain: jump.Chain, Rule: r})
	}
	if there && copies > 1 {
		// iptables removes the first rule of several that are equal, which may be the one at its place: all go, one comes.
		stray, there = append(stray, jump), false
	}
	return stray, there
}

// AppendRestore appends the input for iptables-restore --noflush that makes the edits, leaving out those that change nothing. Each
// table is a transaction of its own: it happens whole or not at all (iptables-restore(8)).
func AppendRestore(b []byte, edits []Edit) []byte {
	for i := range edits {
		if e := &edits[i]; !e.IsZero() {
			b = appendEdit(b, e)
		}
	}
	return b
}

func appendEdit(b []byte, e *Edit) []byte {
	b = append(b, '*')
	b = append(b, e.Table...)
	b = append(b, '\n')
	for i := range e.Replace {
		b = appendChainLine(b, &e.Replace[i])
	}
	for _, name := range e.Delete {
		b = appendChainLine(b, &Chain{Name: name})
	}
	for i := range e.Replace {
		b = AppendRules(b, &e.Replace[i])
	}
	b = appendPlaced(b, "-D ", e.Remove)
	b = appendPlaced(b, "-I ", e.Insert)
	b = appendPlaced(b, "-A ", e.Append)
	for _, name := range e.Delete {
		b = append(b, "-X "...)
		b = append(b, name...)
		b = append(b, '\n')
	}
	return append(b, "COMMIT\n"...)
}

func appendPlaced(b []byte, command string, placed []SharedRule) []byte {
	for i := range placed {
		b = append(b, command...)
		b = append(b, placed[i].Chain...)
		b = appendSpec(b, &placed[i].Rule)
		b = append(b, '\n')
	}
	return b
}
