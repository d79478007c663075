package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// savedRules is a dump of iptables-save: the rules of each chain by "table CHAIN policy", a chain without rules too.
type savedRules map[string][]string

func parseSaved(dumps ...[]byte) (savedRules, error) {
	out := savedRules{}
	for _, dump := range dumps {
		table, names := "", map[string]string{}
		for line := range strings.Lines(string(dump)) {
			line = strings.TrimRight(line, "\n")
			switch {
			case line == "", line == "COMMIT", strings.HasPrefix(line, "#"):
			case line[0] == '*':
				table, names = line[1:], map[string]string{}
			case line[0] == ':':
				fields := strings.Fields(line[1:]) // name, policy, counters
				key := table + " " + fields[0] + " " + fields[1]
				names[fields[0]], out[key] = key, nil
			case strings.HasPrefix(line, "-A "):
				name, _, _ := strings.Cut(line[3:], " ")
				key, ok := names[name]
				if !ok {
					return nil, fmt.Errorf("rule of an unknown chain: %s", line)
				}
				out[key] = append(out[key], line)
			default:
				return nil, fmt.Errorf("unknown line of iptables-save: %s", line)
			}
		}
	}
	return out, nil
}

// shared are the chains that hold rules of many service ports. Upstream writes the ports in the order of a Go map, so the order between
// ports means nothing; the order of the rules of one port is.
var shared = map[string]bool{
	"nat KUBE-SERVICES -": true, "nat KUBE-NODEPORTS -": true,
	"filter KUBE-SERVICES -": true, "filter KUBE-EXTERNAL-SERVICES -": true, "filter KUBE-NODEPORTS -": true,
	"filter KUBE-PROXY-FIREWALL -": true,
}

// lastRule is in the comment of the rules that end KUBE-SERVICES. Upstream writes one for each of the node's addresses, in the order of a
// Go map.
const lastRule = `--comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"`

// normalise takes out what upstream leaves to the order of a Go map, and nothing else.
func (s savedRules) normalise() savedRules {
	out := maps.Clone(s)
	for key, rules := range s {
		if !shared[key] {
			continue
		}
		end := slices.IndexFunc(rules, func(r string) bool { return strings.Contains(r, lastRule) })
		if end < 0 {
			end = len(rules)
		}
		ports, last := slices.Clone(rules[:end]), slices.Clone(rules[end:])
		slices.SortStableFunc(ports, func(a, b string) int { return strings.Compare(portOf(a), portOf(b)) })
		if !slices.ContainsFunc(last, func(r string) bool { return !strings.Contains(r, lastRule) }) {
			slices.Sort(last)
		}
		out[key] = append(ports, last...)
	}
	return out
}

// portOf returns the service port whose rule it is: the first word of its comment.
func portOf(rule string) string {
	_, comment, _ := strings.Cut(rule, "--comment ")
	comment = strings.TrimPrefix(comment, `"`)
	port, _, _ := strings.Cut(comment, " ")
	return strings.TrimSuffix(port, `"`)
}

// diff tells how two dumps differ, "" for not at all.
func diff(theirs, our savedRules) string {
	theirs, our = theirs.normalise(), our.normalise()
	keys := map[string]bool{}
	for key := range theirs {
		keys[key] = true
	}
	for key := range our {
		keys[key] = true
	}
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		diffChain(&out, key, theirs, our)
	}
	return out.String()
}

// diffChain writes the rules that one side has and the other has not; where both have the same in another order, all.
func diffChain(out *strings.Builder, key string, theirs, our savedRules) {
	a, inTheirs := theirs[key]
	b, inOurs := our[key]
	if inTheirs == inOurs && slices.Equal(a, b) {
		return
	}
	fmt.Fprintf(out, "%s (chain there: upstream %t, ours %t)\n", key, inTheirs, inOurs)
	onlyA, onlyB := without(a, b), without(b, a)
	if len(onlyA)+len(onlyB) == 0 {
		onlyA, onlyB = a, b
	}
	for _, rule := range onlyA {
		fmt.Fprintf(out, "- %s\n", rule)
	}
	for _, rule := range onlyB {
		fmt.Fprintf(out, "+ %s\n", rule)
	}
}

// without returns the rules of a that b lacks, or has fewer times.
func without(a, b []string) []string {
	times := map[string]int{}
	for _, rule := range b {
		times[rule]++
	}
	var out []string
	for _, rule := range a {
		if times[rule]--; times[rule] < 0 {
			out = append(out, rule)
		}
	}
	return out
}
