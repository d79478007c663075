package iptables

import (
	"slices"

	"packetwalk.dev/internal/model/netfilter"
)

// trackingExtensions are the matches and targets that make the kernel track connections (nf_ct_netns_get in net/netfilter/xt_NAME.c).
var trackingExtensions = []string{
	"cluster", "connbytes", "connlabel", "connlimit", "connmark", "conntrack", "helper", "state",
	"CLUSTERIP", "CONNMARK", "CONNSECMARK", "DNAT", "MASQUERADE", "NETMAP", "REDIRECT", "SNAT", "SYNPROXY",
}

// otherMatches are upstream's matches of which nothing is known here but that they do not make the kernel track connections.
var otherMatches = []string{
	"ah", "bpf", "cpu", "dst", "ecn", "esp", "eui64", "frag", "hbh", "ipcomp", "ipv6header", "l2tp", "mh", "osf", "rateest", "realm", "rt",
	"srh", "time",
}

// matchTracking returns whether a match makes the kernel track connections, by its module's name.
func matchTracking(module string) netfilter.Tracking {
	_, known := matchExtensions[module]
	return tracking(module, known || slices.Contains(otherMatches, module))
}

// targetTracking returns whether a target makes the kernel track connections. Of CT only --notrack does not.
func targetTracking(name string) netfilter.Tracking {
	_, known := targetExtensions[name]
	return tracking(name, known && name != "CT")
}

func tracking(extension string, known bool) netfilter.Tracking {
	switch {
	case slices.Contains(trackingExtensions, extension):
		return netfilter.Tracks
	case known:
		return netfilter.NeverTracks
	}
	return netfilter.MayTrack
}
