package tour

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A kind is a shape of text that differs from run to run.
type kind struct {
	name string
	// find has the text in a group, or several, within what must stand around it.
	find *regexp.Regexp
	// here is what may stand in its place, without groups.
	here string
	// one says that the text stands for one other text on the whole page, and no other does for that one: a name, not a figure.
	one bool
	// text says that the names are known by their shape outside of outputs too, in commands and in prose.
	text bool
	// ok narrows what the expressions can say; nil: nothing to narrow.
	ok func(n *Names, text string) bool
	// like narrows what may stand for a text of the page; nil: nothing to narrow.
	like func(page, here string) bool
}

// letters are those that Kubernetes makes names of: no vowels, and no 0, 1 and 3 (k8s.io/apimachinery/pkg/util/rand).
const letters = `[bcdfghjklmnpqrstvwxz2456789]`

// kinds are tried in this order where two begin at the same place. What none of them finds must be the same in every run.
var kinds = []kind{
	// The ranges that a walk prints for ports chosen at random are what it shows.
	{name: "fixed", find: regexp.MustCompile(`\b(32768-60999|1024-65535|30000-32767|ff:ff:ff:ff:ff:ff|00:00:00:00:00:00|12:34:56:78:9a:bc)\b`)},

	{name: "uid", one: true, text: true, here: `[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`,
		find: regexp.MustCompile(`\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b`)},
	{name: "rule of the load balancer", one: true, text: true, here: `a[0-9a-f]{31}`, find: regexp.MustCompile(`\b(a[0-9a-f]{31})\b`)},
	{name: "hardware address", one: true, text: true, here: `[0-9a-f]{2}(?::[0-9a-f]{2}){5}`,
		find: regexp.MustCompile(`\b([0-9a-f]{2}(?::[0-9a-f]{2}){5})\b`)},
	{name: "link-local address", here: `fe80::[0-9a-f:]+`, find: regexp.MustCompile(`\b(fe80::[0-9a-f:]+)`)},
	{name: "interface of a pod", one: true, text: true, here: `azv[0-9a-f]{11}`, find: regexp.MustCompile(`\b(azv[0-9a-f]{11})\b`)},
	{name: "interface of a pod", one: true, text: true, here: `veth[0-9a-f]{8}`, find: regexp.MustCompile(`\b(veth[0-9a-f]{8})\b`)},
	{name: "interface's number", one: true, here: `\d+`, find: regexp.MustCompile(`^(\d+): [a-z]`)},
	{name: "interface's number", one: true, here: `\d+`, find: regexp.MustCompile(`@if(\d+)\b`)},
	{name: "namespace's number", here: `\d+`, find: regexp.MustCompile(`\blink-netnsid (\d+)\b`)},
	{name: "node", one: true, text: true, here: `aks-[a-z0-9]+-\d{8}-\d+`, find: regexp.MustCompile(`\b(aks-[a-z0-9]+-\d{8}-\d+)\b`)},
	{name: "pod", one: true, text: true, here: letters + `{6,10}-` + letters + `{5}`,
		find: regexp.MustCompile(`[a-z0-9]-(` + letters + `{6,10}-` + letters + `{5})\b`)},
	{name: "last part of a name", one: true, text: true, here: letters + `{5,12}`,
		find: regexp.MustCompile(`[a-z0-9]-(` + letters + `{5,12})(?:$|[\s/:,"'])`)},
	{name: "chain of an endpoint", one: true, text: true, here: `[A-Z]+(?:-[A-Z]+)+-[A-Z2-7]{16}`,
		find: regexp.MustCompile(`\b([A-Z]+(?:-[A-Z]+)+-[A-Z2-7]{16})\b`), ok: (*Names).ofEndpoint, like: sameKind},
	{name: "prefix", one: true, text: true, here: `\d{1,3}(?:\.\d{1,3}){3}/\d+`, find: regexp.MustCompile(`\b(\d{1,3}(?:\.\d{1,3}){3}/\d+)\b`),
		ok: (*Names).prefix, like: sameLength},
	{name: "address", one: true, text: true, here: `\d{1,3}(?:\.\d{1,3}){3}`, find: regexp.MustCompile(`\b(\d{1,3}(?:\.\d{1,3}){3})\b`),
		ok: (*Names).varies},
	{name: "node port", one: true, text: true, here: `3[0-2]\d{3}`, find: regexp.MustCompile(`\b(3[0-2]\d{3})\b`), ok: between(30000, 32767)},

	{name: "time", here: `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z`,
		find: regexp.MustCompile(`\b(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)\b`)},
	{name: "time", here: `\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}`,
		find: regexp.MustCompile(`\b(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\b`)},
	{name: "time", here: `\d\d:\d\d:\d\d\.\d{6}`, find: regexp.MustCompile(`\b(\d\d:\d\d:\d\d\.\d{6})\b`)},
	{name: "time", here: `\d+\.\d`, find: regexp.MustCompile(`^ *(\d+\.\d) s  `)},
	{name: "age", here: `\d+[smhd](?:\d+[smh])?`, find: regexp.MustCompile(`(?:  |^)(\d+[smhd](?:\d+[smh])?)(?:  |$)`)},
	{name: "restarts", here: `\d+(?: \(\d+[smhd](?:\d+[smh])? ago\))?`,
		find: regexp.MustCompile(`\b\d+/\d+ +[A-Z][A-Za-z]+ +(\d+(?: \(\d+[smhd](?:\d+[smh])? ago\))?) `)},
	{name: "round trip", here: `[\d./]+`, find: regexp.MustCompile(`(?:time[= ]|min/avg/max/mdev = )([\d./]+) ?ms\b`)},

	{name: "source port", here: `\d{4,5}`, find: regexp.MustCompile(`\b[sd]port=(\d{4,5})\b`), ok: chosen},
	{name: "source port", here: `\d{4,5}`, find: regexp.MustCompile(`"requestAddr":"[\d.]+:(\d{4,5})"`), ok: chosen},
	{name: "source port", here: `\d{5}`, find: regexp.MustCompile(`\b(\d{5})\b`), ok: between(32768, 60999)},
	{name: "timeout of a flow", here: `\d+`, find: regexp.MustCompile(`^(?:tcp|udp|icmp) +\d+ (\d+) `)},
	{name: "number of a flow", here: `\d+`, find: regexp.MustCompile(`\b(?:use|id)=(\d+)\b`)},
	{name: "number of a packet", here: `\d+(?::\d+)?`, find: regexp.MustCompile(`\b(?:seq|ack|win|val|ecr|, id) (\d+(?::\d+)?)\b`)},
	{name: "counter", here: `\d+[KMGT]?`, find: regexp.MustCompile(`^ *(\d+[KMGT]?) +(\d+[KMGT]?) +\S+ +\S+ +--? `)},
	{name: "counter", here: `\d+[KMGT]?`, find: regexp.MustCompile(`\(policy [A-Z]+ (\d+[KMGT]?) packets, (\d+[KMGT]?) bytes\)`)},
	{name: "counter", here: `\d+`, find: regexp.MustCompile(`\[(\d+):(\d+)\]`)},
	{name: "size", here: `\d+`, find: regexp.MustCompile(`^Size in memory: (\d+)$`)},
	{name: "process", here: `\d+`, find: regexp.MustCompile(`\bpid[= ](\d+)\b`)},
	{name: "process", here: `\d+`, find: regexp.MustCompile(`\bfd=(\d+)\b`)},

	// What is the same thing to the reader.
	{name: "steps that agree", here: `\d+ of \d+`, find: regexp.MustCompile(`\b(\d+ of \d+) steps agree\b`), ok: all},
	{name: "what was done", here: `(?:created|configured|unchanged)`, find: regexp.MustCompile(`^\S+ (created|configured|unchanged)$`)},
	{name: "name of the lab", here: `[a-z0-9-]+`, find: regexp.MustCompile(`\blab "([a-z0-9-]+)"`)},
	{name: "version of a tool", here: `v?[\d.]+`, find: regexp.MustCompile(`\b(?:curl|Wget|conntrack)[/ ](v?[\d.]+)`)},
	{name: "protocol", here: `(?:all|0)`, find: regexp.MustCompile(` (all|0) +-- `)}, // iptables from 1.8.10 on prints numbers
	{name: "protocol", here: `(?:tcp|6)`, find: regexp.MustCompile(` (tcp|6) +-- `)},
	{name: "protocol", here: `(?:udp|17)`, find: regexp.MustCompile(` (udp|17) +-- `)},
}

func between(first, last int) func(*Names, string) bool {
	return func(_ *Names, text string) bool {
		v, err := strconv.Atoi(text)
		return err == nil && first <= v && v <= last
	}
}

// chosen says of a port that a machine chose it: it is no well-known one, and none that applications of the lab listen on.
func chosen(_ *Names, text string) bool {
	port, err := strconv.Atoi(text)
	return err == nil && 1024 <= port && port <= 65535 && port != 8080
}

// all says of "52 of 52" that it is all.
func all(_ *Names, text string) bool {
	some, of, _ := strings.Cut(text, " of ")
	return some == of
}

// varies says of an address that it is in one of the page's ranges.
func (n *Names) varies(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && slices.ContainsFunc(n.ranges, func(r Range) bool { return r.Contains(a) })
}

// prefix says of a prefix that it is one, with no bits set after its length, in one of the page's ranges.
func (n *Names) prefix(text string) bool {
	p, err := netip.ParsePrefix(text)
	return err == nil && p == p.Masked() && p.Bits() < p.Addr().BitLen() && n.varies(p.Addr().String())
}

// ofEndpoint says of a chain that it is an endpoint's, after whose address it is called.
func (n *Names) ofEndpoint(chain string) bool { return n.endpoint != nil && n.endpoint(chain) }

// sameKind compares what stands before the hash in chains' names.
func sameKind(page, here string) bool {
	return page[:strings.LastIndexByte(page, '-')] == here[:strings.LastIndexByte(here, '-')]
}

func sameLength(page, here string) bool {
	return page[strings.Index(page, "/"):] == here[strings.Index(here, "/"):]
}

// A token is a piece of a line that a kind has found.
type token struct {
	from, to int
	kind     *kind
}

// tokens returns a line's, in order, none over another.
func (n *Names) tokens(line string) []token {
	var found []token
	for i := range kinds {
		k := &kinds[i]
		for _, at := range groups(k.find, line) {
			if k.ok == nil || k.ok(n, line[at[0]:at[1]]) {
				found = append(found, token{at[0], at[1], k})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b token) int { return a.from - b.from })
	kept := found[:0]
	end := 0
	for _, t := range found {
		if t.from >= end {
			kept = append(kept, t)
			end = t.to
		}
	}
	return kept
}

// groups returns the places of an expression's groups in a line. What stands around a group may stand around the next one, too.
func groups(find *regexp.Regexp, line string) [][2]int {
	var at [][2]int
	for begin := 0; begin <= len(line); {
		m := find.FindStringSubmatchIndex(line[begin:])
		if m == nil {
			break
		}
		for i := 2; i < len(m); i += 2 {
			at = append(at, [2]int{begin + m[i], begin + m[i+1]})
		}
		if strings.HasPrefix(find.String(), "^") {
			break
		}
		begin += m[3]
	}
	return at
}
