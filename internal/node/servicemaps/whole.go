package servicemaps

import (
	"maps"
	"slices"

	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// Whole is everything that the state has: all sets, all chains (those that others lead to first), all elements.
func (s *State) Whole() (sets []nf.Set, chains []nf.Chain, elements Elements) {
	sets, chains, elements = s.w.sets(), nil, Elements{}
	clients := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.named)) {
		f := s.named[name]
		if f.choosesSticky() && !clients[f.clients(f.policy)] {
			clients[f.clients(f.policy)] = true
			sets = append(sets, s.w.clients(&f))
		}
		chains = append(chains, s.w.fan(&f))
	}
	for set, keys := range s.claims {
		elements[set] = make(map[string]Value, len(keys))
		for key := range keys {
			if has, ok := s.effective(set, key); ok {
				elements[set][key] = Value{has.value, has.comment}
			}
		}
	}
	return sets, append(chains, s.w.chains()...), elements
}

// Compare gives the steps from what a table holds to the state: its elements, and clients of service ports with session affinity that are
// with other endpoints than those. What is left over goes last. It writes all chains and sets.
func (s *State) Compare(held Elements) Changes {
	sets, chains, _ := s.Whole()
	steps := []Step{{Sets: sets, Chains: chains}}
	if step := s.owned(held, setNodeIPs, slices.Sorted(maps.Keys(s.claims[setNodeIPs]))); !step.isZero() {
		steps = append(steps, step)
	}
	for _, id := range slices.Sorted(maps.Keys(s.parts)) {
		st := s.parts[id]
		part := newPart(s.w, &st.port, st.slots)
		var step Step
		compared := map[string]bool{} // of hairpins: two endpoints may have one address
		for i := range part.elements {
			e := &part.elements[i]
			if has, _ := s.effective(e.set, e.key); has.owner == st && !compared[e.key] {
				compared[e.key] = e.set == setHairpin
				s.compare(&step, held, e.set, e.key)
			}
		}
		forgot := map[string]bool{}
		for i := range part.fans {
			if f := &part.fans[i]; f.choosesSticky() && !forgot[f.clients(f.policy)] {
				forgot[f.clients(f.policy)] = true
				step.Forget = append(step.Forget, forget(f, part))
			}
		}
		if !step.isZero() {
			steps = append(steps, step)
		}
	}
	if left := s.left(held); !left.isZero() {
		steps = append(steps, left)
	}
	return Changes{Steps: steps}
}

func (s *State) owned(held Elements, set string, keys []string) (step Step) {
	for _, key := range keys {
		s.compare(&step, held, set, key)
	}
	return step
}

// compare adds the change of one key that the state has.
func (s *State) compare(step *Step, held Elements, name, key string) {
	want, _ := s.effective(name, key)
	set := s.sets[name]
	has, there := held[name][key]
	if there && has == (Value{want.value, want.comment}) {
		return
	}
	if there {
		step.Delete = append(step.Delete, Change{set, element(set, key, has.Value, "")})
	}
	step.Add = append(step.Add, Change{set, element(set, key, want.value, want.comment)})
}

// left deletes the keys that the state does not have: first those that lead to others.
func (s *State) left(held Elements) (step Step) {
	for _, verdicts := range []bool{true, false} {
		for _, set := range s.order {
			if set.Verdicts != verdicts {
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(held[set.Name])) {
				if _, wanted := s.effective(set.Name, key); !wanted {
					step.Delete = append(step.Delete, Change{set, element(set, key, held[set.Name][key].Value, "")})
				}
			}
		}
	}
	return step
}
