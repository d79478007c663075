package netfilter

import "fmt"

// Family is the address family of a table.
type Family uint8

// The families. Inet tables see IPv4 and IPv6 packets.
const (
	IPv4 Family = iota
	IPv6
	Inet
	Bridge
	ARP
	Netdev
)

// String returns the family's name in nft: "ip", "ip6", "inet", "bridge", "arp", "netdev".
func (f Family) String() string {
	return [...]string{"ip", "ip6", "inet", "bridge", "arp", "netdev"}[f]
}

// Hook is a place in the kernel where base chains are called.
type Hook uint8

// The hooks. NoHook is for chains that are only jumped to.
const (
	NoHook Hook = iota
	Prerouting
	Input
	Forward
	Output
	Postrouting
	Ingress
	Egress
)

// String returns the hook's name as nft has it.
func (h Hook) String() string {
	return [...]string{"", "prerouting", "input", "forward", "output", "postrouting", "ingress", "egress"}[h]
}

// Priorities of hooks (include/uapi/linux/netfilter_ipv4.h): conntrack and translation happen at fixed ones.
const (
	PriorityDefrag    = -400
	PriorityRaw       = -300
	PriorityConntrack = -200
	PriorityMangle    = -150
	PriorityDNAT      = -100
	PriorityFilter    = 0
	PrioritySecurity  = 50
	PrioritySNAT      = 100
)

// Dialect is the syntax that a table was written in: who reads its rules needs to know, and the kernel treats some of them differently.
type Dialect string

// The dialects.
const (
	IPTablesLegacy Dialect = "iptables-legacy"
	IPTablesNFT    Dialect = "iptables-nft"
	NFTables       Dialect = "nftables"
	EBTables       Dialect = "ebtables"
)

// Ruleset is all that one network namespace filters with, in every dialect, the tables in the order in which they were made. Base chains of
// one hook run in the order of their priorities; of equal ones the kernel puts each new one in front (net/netfilter/core.c,
// nf_hook_entries_grow), so that the last table's runs first.
type Ruleset struct {
	Tables     []*Table
	hooks      map[hookKey][]*Chain // made by Index, as the next two
	tracks     [Netdev + 1]truth    // by family, as the next one
	translates [Netdev + 1]bool
	remembers  [Netdev + 1]bool
}

type hookKey struct {
	family Family
	hook   Hook
}

// Table is one table.
type Table struct {
	Family  Family
	Name    string
	Dialect Dialect
	Chains  []*Chain
	Sets    map[string]*Set // nft sets and maps; nil in the other dialects
	Tracks  bool            // one of its objects, such as a ct helper, makes the kernel track connections without any rule
}

// Chain is a list of rules.
type Chain struct {
	Table *Table
	Name  string
	Base  *Base // nil for a chain that is only jumped to
	// Policy is what happens to a packet that reaches the end: Accept or Drop for base chains, Return for others.
	Policy VerdictKind
	Rules  []Rule
	// Partial says that the chain may have other rules, anywhere, than those that are shown.
	Partial bool
	index   index
}

// Base says where the kernel calls a chain.
type Base struct {
	Type     string // "filter", "nat" or "route"
	Hook     Hook
	Priority int
	// Devices are the interfaces that an ingress or egress chain hangs at; nil where they are not known.
	Devices []string
}

// Rule is one rule: statements that are evaluated one after the other until one does not hold.
type Rule struct {
	Number     int    // its place in the chain, from 1
	Handle     uint64 // nf_tables' handle; 0 where not known
	Text       string // in its own syntax, without "-A CHAIN "
	Comment    string
	Statements []Statement
	// Counters count the packets that the rule applied to; nil where they are unknown, or where Text has them.
	Counters *Counters
}

// Counters are a rule's packets and bytes.
type Counters struct{ Packets, Bytes uint64 }

// Ref names a rule, or with Number 0 the end (policy) of a chain, for messages.
func (c *Chain) Ref(r *Rule) string {
	if r == nil {
		return fmt.Sprintf("%s %s policy", c.Table.Name, c.Name)
	}
	return fmt.Sprintf("%s %s %d", c.Table.Name, c.Name, r.Number)
}
