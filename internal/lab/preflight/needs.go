package preflight

import (
	"fmt"
	"slices"
)

// Need names a use of features, in the words that the user sees.
type Need string

// The needs. Worlds choose among the first ones by their cluster.yaml.
const (
	Lab           Need = "every lab"
	PodBridge     Need = "pods on a bridge (mode bridge, plugin kubenet)"
	IPTablesProxy Need = "service proxy with iptables"
	NFTablesProxy Need = "service proxy with nftables"
	Calico        Need = "policy calico"

	Limits    Need = "limits of memory, CPU and processes"
	DiskLimit Need = "limit of what containers write"
	LiveWalk  Need = "walk --live"
	FlowList  Need = "connections in captures and walks"
	Counters  Need = "counters of dropped packets"
	PodUsers  Need = "pods in user namespaces"
	Fixes     Need = "fixes of Debian's programs on nodes"
)

// optional are the needs that a lab does without, and what is then off.
var optional = map[Need]string{
	Limits:    "containers can use up the machine's memory, CPU and processes",
	DiskLimit: "what containers write is kept in memory, and not limited",
	LiveWalk:  "walk --live does not work",
	FlowList:  "captures have no connections where the kernel has no /proc/net/nf_conntrack",
	Counters:  "rules do not count the packets that they drop",
	PodUsers:  "root in a pod is root of the machine",
	Fixes:     "programs on nodes have holes that Debian has closed",
}

// allNeeds is for the user who asks about the machine as a whole.
var allNeeds = []Need{Lab, PodBridge, IPTablesProxy, NFTablesProxy, Calico, Limits, DiskLimit, LiveWalk, FlowList, Counters, PodUsers, Fixes}

// AllNeeds returns the needs of all worlds, the optional ones last.
func AllNeeds() []Need { return slices.Clone(allNeeds) }

// OptionalNeeds returns those that every lab does without.
func OptionalNeeds() []Need {
	return slices.DeleteFunc(AllNeeds(), func(n Need) bool { return n.Without() == "" })
}

// Without says what does not work without an optional need. It is empty for a need that is not optional.
func (n Need) Without() string { return optional[n] }

// Off says, for each optional need that is not met, what is off and why.
func Off(rows []Row, needs ...Need) []string {
	var lines []string
	for _, n := range needs {
		for _, r := range rows {
			if n.Without() != "" && r.Result != Works && slices.Contains(r.NeededFor, n) {
				lines = append(lines, fmt.Sprintf("%s: %s: %s; %s", n.Without(), r.Feature, r.Cause, r.Remedy))
				break // the first says enough
			}
		}
	}
	return lines
}

// Optional reports whether labs come up without the feature.
func (r Row) Optional() bool {
	for _, n := range r.NeededFor {
		if optional[n] == "" {
			return false
		}
	}
	return true
}
