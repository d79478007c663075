package nftables

import (
	"slices"

	"packetwalk.dev/internal/model/netfilter"
)

// trackingWords are the statements, expressions and objects that make the kernel track connections (nf_ct_netns_get in net/netfilter/nft_….c).
var trackingWords = []string{
	"ct", "ct count", "ct expectation", "ct helper", "ct timeout", "dnat", "flow", "masquerade", "redirect", "snat", "synproxy",
}

// otherWords are the statements and expressions that do not.
var otherWords = []string{
	"&", "<<", ">>", "^", "accept", "concat", "continue", "counter", "drop", "dup", "elem", "exthdr", "fib", "fwd", "goto", "ip option", "ipsec",
	"jhash", "jump", "last", "limit", "log", "mangle", "map", "match", "meta", "meter", "notrack", "numgen", "osf", "payload", "prefix", "queue",
	"quota", "range", "reject", "reset", "return", "rt", "sctp chunk", "dccp option", "secmark", "set", "socket", "symhash", "target",
	"tcp option", "tproxy", "tunnel", "val", "vmap", "|",
}

// tracking returns whether a statement or an expression makes the kernel track connections. Both are objects with one member, whose value is
// an object of parameters, or a list.
func tracking(n *Node) netfilter.Tracking {
	answer := netfilter.NeverTracks
	parameters := slices.Contains(otherWords, n.Name) && n.Name != "elem" && n.Name != "val"
	if name, _, ok := n.singleMember(); ok && !parameters {
		switch {
		case slices.Contains(trackingWords, name):
			return netfilter.Tracks
		case !slices.Contains(otherWords, name):
			answer = netfilter.MayTrack
		}
	}
	for i := range n.Items {
		switch tracking(&n.Items[i]) {
		case netfilter.Tracks:
			return netfilter.Tracks
		case netfilter.MayTrack:
			answer = netfilter.MayTrack
		}
	}
	return answer
}
