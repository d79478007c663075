// Package nodeimage makes packetwalk's own image, which runs on the nodes of any cluster: its static programs, and Debian's nft, iptables
// of both variants, ebtables, ipset, ip, bridge and conntrack with the libraries that they need, each for one architecture. There is no
// shell in it. The same files make the same image, with the same digest: owners are root, times the epoch, entries sorted.
//
// Where files come from is its caller's: packages (pods/deb), or this machine's own (pods/distribution), for tests. It must not import
// Kubernetes or what runs containers.
//
//	layer 1   Debian's files, with each package's copyright file and record
//	layer 2   the programs, and usr/share/sbom/packetwalk.spdx.json
package nodeimage
