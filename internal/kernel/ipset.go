package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/syntax/ipset"
)

// ErrSetInUse: a set that rules look into was to be deleted or made anew.
var ErrSetInUse = errors.New("IP set in use by rules")

// IPSets reads and writes the IP sets of one network namespace by ipset(8). The zero value is the namespace that the process was started
// in. Its methods are safe for concurrent use, but two Updates of one set at once get into each other's way.
type IPSets struct{ namespace *Namespace }

// IPSets are those of the namespace.
func (n *Namespace) IPSets() IPSets { return IPSets{n} }

// List gives all sets, those that other programs made too.
func (s IPSets) List(ctx context.Context) ([]ipset.Set, error) {
	out, err := s.run(ctx, nil, "save")
	if err != nil {
		return nil, fmt.Errorf("list IP sets: %w", err)
	}
	sets, err := ipset.Parse(out)
	if err != nil {
		return nil, fmt.Errorf("list IP sets: %w", err)
	}
	return sets, nil
}

// Update makes each set that plan gives for those there are, in this order, have exactly its members; one that is not there is created,
// and one that has them already is not touched. It returns the names of those that it changed.
//
// A set changes all at once, for rules that look into it too: a temporary set is filled and swapped with it. One set may come several
// times, for steps on its way. A set that is there with another type, family or maximum is made anew, which fails while rules use it. What
// an Update that was killed has left over, the next one takes away.
func (s IPSets) Update(ctx context.Context, plan func(have []ipset.Set) []ipset.Set) ([]string, error) {
	have, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	script, changed, err := ensure(have, plan(have))
	if err != nil || len(script) == 0 {
		return nil, err
	}
	if _, err := s.run(ctx, script, "restore"); err != nil {
		return nil, fmt.Errorf("write IP sets %s: %w", strings.Join(changed, ", "), err)
	}
	return changed, nil
}

const maxSetName = 31 // IPSET_MAXNAMELEN - 1, include/uapi/linux/netfilter/ipset/ip_set.h

func temporary(name string) string { return name + "-tmp" }

// ensure writes the commands for ipset restore.
func ensure(have, want []ipset.Set) (script []byte, changed []string, err error) {
	now := map[string]ipset.Set{}
	for _, h := range have {
		now[h.Name] = h
	}
	for _, w := range want {
		tmp := temporary(w.Name)
		if len(tmp) > maxSetName {
			return nil, nil, fmt.Errorf("IP set %s: the name is too long; at most %d characters", w.Name, maxSetName-len(temporary("")))
		}
		if _, left := now[tmp]; left {
			script = fmt.Appendf(script, "destroy %s\n", tmp)
			delete(now, tmp)
		}
		old, there := now[w.Name]
		if there && sameKind(old, w) && ipset.SameMembers(old.Members, w.Members) {
			continue
		}
		if there && !sameKind(old, w) {
			script = fmt.Appendf(script, "destroy %s\n", w.Name)
			there = false
		}
		if !there {
			script = append(script, ipset.Print([]ipset.Set{{Name: w.Name, Type: w.Type, Options: w.Options}})...)
		}
		filled := w
		filled.Name = tmp
		script = append(script, ipset.Print([]ipset.Set{filled})...)
		script = fmt.Appendf(script, "swap %s %s\ndestroy %s\n", tmp, w.Name, tmp)
		now[w.Name] = w
		if !slices.Contains(changed, w.Name) {
			changed = append(changed, w.Name)
		}
	}
	return script, changed, nil
}

// sameKind compares what a swap cannot change and what limits the members. The kernel adds options of its own and grows hashsize.
func sameKind(a, b ipset.Set) bool {
	for _, option := range []string{"family", "maxelem"} {
		if a.Option(option) != b.Option(option) {
			return false
		}
	}
	return a.Type == b.Type
}

func (s IPSets) run(ctx context.Context, input []byte, args ...string) ([]byte, error) {
	c := program.Command{Path: "ipset", Args: args, Stdin: input}
	if s.namespace != nil {
		c.In = s.namespace.Do
	}
	out, err := c.Output(ctx)
	if err != nil && strings.Contains(err.Error(), "in use by a kernel component") { // ipset(8) has one exit status for all
		err = fmt.Errorf("%w: %w", ErrSetInUse, err)
	}
	return out, err
}
