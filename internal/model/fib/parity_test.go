package fib_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/syntax/iproute"
	"packetwalk.dev/internal/testing/kerneltest"
)

var compareAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// TestLookupAsKernel compares look-ups with "ip route get" in random worlds: links, addresses, routes, policy rules.
// FIB_WORLDS and FIB_SEED make it go on for longer or begin elsewhere.
func TestLookupAsKernel(t *testing.T) {
	kerneltest.NeedRoot(t)
	worlds, seed := environment("FIB_WORLDS", 6), environment("FIB_SEED", 1)
	compared := 0
	for i := range worlds {
		compared += compareWorld(t, uint64(seed+i))
		if t.Failed() {
			t.Fatalf("seed %d", seed+i)
		}
	}
	t.Logf("%d look-ups compared", compared)
	if compared < worlds*100 {
		t.Errorf("only %d look-ups compared in %d worlds", compared, worlds)
	}
}

func environment(name string, otherwise int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return otherwise
	}
	return n
}

// namespace is a network namespace of the test's own.
type namespace string

func newNamespace(t *testing.T, name string) namespace {
	t.Helper()
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	return namespace(name)
}

func (n namespace) run(t *testing.T, input string, command ...string) (stdout, stderr []byte) {
	t.Helper()
	c := exec.Command("ip", append([]string{"netns", "exec", string(n)}, command...)...)
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(input), &out, &errs
	err := c.Run()
	if _, failed := err.(*exec.ExitError); err != nil && !failed { //nolint:errorlint // exec documents this type
		t.Fatalf("%v: %v", command, err)
	}
	return out.Bytes(), errs.Bytes()
}

func (n namespace) sysctl(t *testing.T, name, value string) {
	t.Helper()
	_, errs := n.run(t, value, "tee", filepath.Join("/proc/sys", name))
	if len(errs) > 0 {
		t.Fatalf("%s: %s", name, errs)
	}
}

// state dumps the namespace with iproute2 and reads it with the parsers.
func (n namespace) state(t *testing.T) *fib.State {
	t.Helper()
	dump := func(command ...string) []byte {
		out, errs := n.run(t, "", command...)
		if len(errs) > 0 {
			t.Fatalf("%v: %s", command, errs)
		}
		return out
	}
	s := &fib.State{}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.Links, err = iproute.ParseLinks(dump("ip", "-d", "-j", "link", "show"))
	must(err)
	s.Addresses, err = iproute.ParseAddresses(dump("ip", "-j", "addr"))
	must(err)
	s.Routes, err = iproute.ParseRoutes(dump("ip", "-4", "-j", "route", "show", "table", "all"))
	must(err)
	six, err := iproute.ParseRoutes(dump("ip", "-6", "-j", "route", "show", "table", "all"))
	must(err)
	s.Routes = append(s.Routes, six...)
	for _, ipv6 := range []bool{false, true} {
		family := map[bool]string{false: "-4", true: "-6"}[ipv6]
		rules, err := iproute.ParseRules(dump("ip", family, "-j", "rule"), ipv6)
		must(err)
		s.Rules = append(s.Rules, rules...)
	}
	return s
}

// compareTexts reads what iproute2 prints for people, too: it is to give the same as its JSON.
func (n namespace) compareTexts(t *testing.T, s *fib.State) {
	t.Helper()
	same := func(what string, got, want any, err error) {
		t.Helper()
		if d := gocmp.Diff(want, got, compareAddresses, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("%s as text: %v (-JSON +text)\n%s", what, err, d)
		}
	}
	var routes []fib.Route
	var rules []fib.Rule
	for _, flag := range []string{"-4", "-6"} {
		out, _ := n.run(t, "", "ip", flag, "route", "show", "table", "all")
		r, bad := iproute.ParseRoutesText(string(out), flag == "-6")
		var err error
		for _, b := range bad {
			err = errors.Join(err, b.Err)
		}
		same("routes "+flag, len(r) > 0, true, err)
		routes = append(routes, r...)
		out, _ = n.run(t, "", "ip", flag, "rule")
		u, err := iproute.ParseRulesText(string(out), flag == "-6")
		same("rules "+flag, len(u) > 0, true, err)
		rules = append(rules, u...)
	}
	same("routes", routes, s.Routes, nil)
	same("rules", rules, s.Rules, nil)
	out, _ := n.run(t, "", "ip", "addr")
	_, addresses, err := iproute.ParseLinksText(string(out))
	same("addresses", addresses, s.Addresses, err)
}

// settled waits until the kernel has seen to carriers and addresses: until two dumps are the same.
func (n namespace) settled(t *testing.T) *fib.State {
	t.Helper()
	before := n.state(t)
	for range 50 {
		time.Sleep(100 * time.Millisecond)
		now := n.state(t)
		if reflect.DeepEqual(before, now) {
			return now
		}
		before = now
	}
	t.Fatal("the namespace does not come to rest")
	return nil
}

func compareWorld(t *testing.T, seed uint64) (compared int) {
	n := newNamespace(t, fmt.Sprintf("pwfib%d-%d", os.Getpid(), seed))
	defer func() { _ = exec.Command("ip", "netns", "del", string(n)).Run() }()
	for name, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0",
		"net/ipv4/conf/all/accept_local":   "1",
		"net/ipv4/conf/all/route_localnet": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv6/conf/default/accept_dad": "0",
	} {
		n.sysctl(t, name, value)
	}
	r := rand.New(rand.NewPCG(seed, 0))
	links := []string{"a0", "a1", "a2", "a3"}
	var setup strings.Builder
	setup.WriteString("link set lo up\n")
	for i, l := range links {
		fmt.Fprintf(&setup, "link add %s type veth peer name b%d\nlink set %s up group %d\n", l, i, l, 7*(i%2))
		if r.IntN(4) > 0 {
			fmt.Fprintf(&setup, "link set b%d up\n", i)
		}
	}
	n.run(t, setup.String(), "ip", "-force", "-batch", "-")
	for _, l := range links {
		for _, family := range []string{"ipv4", "ipv6"} {
			if r.IntN(3) == 0 {
				n.sysctl(t, "net/"+family+"/conf/"+l+"/ignore_routes_with_linkdown", "1")
			}
		}
	}
	_, errs := n.run(t, "rule add sport 1/1 dscp 1/1\nrule del sport 1/1 dscp 1/1", "ip", "-batch", "-")
	masks := len(errs) == 0
	t.Logf("seed %d: rules with masks of ports and DSCPs: %t", seed, masks)
	var families []*world
	for _, ipv6 := range []bool{false, true} {
		w := &world{Rand: r, ipv6: ipv6, links: links, masks: masks}
		w.fill(seed%3 != 0)
		_, errs := n.run(t, strings.Join(w.lines, "\n"), "ip", w.flag(), "-force", "-batch", "-")
		if bytes.Contains(errs, []byte("expected")) || bytes.Contains(errs, []byte("wrong")) { // ip reads no further then
			t.Fatalf("%s\n%s", strings.Join(w.lines, "\n"), errs)
		}
		families = append(families, w)
	}
	s := n.settled(t)
	n.compareTexts(t, s)
	s.Index()
	for _, w := range families {
		compared += w.compare(t, n, s)
		if t.Failed() {
			out, _ := n.run(t, "", "sh", "-c", "ip "+w.flag()+" rule; ip "+w.flag()+" route show table all; ip "+w.flag()+" addr")
			t.Logf("%s", out)
			break
		}
	}
	return compared
}

// answer is what "ip route get" prints.
type answer struct {
	Type, Gateway, Dev, PrefSrc string
	Via                         *struct{ Family, Host string }
	Dst                         string
	Error                       json.RawMessage
	failed                      string
}

// get asks the kernel all queries at once.
func (n namespace) get(t *testing.T, family string, queries []string) []answer {
	t.Helper()
	var input strings.Builder
	for _, q := range queries {
		input.WriteString("route get " + q + "\n")
	}
	out, errs := n.run(t, input.String(), "ip", family, "-j", "-force", "-batch", "-")
	answers := make([]answer, len(queries))
	lines := strings.Split(string(errs), "\n")
	for i, l := range lines {
		if number, ok := strings.CutPrefix(l, "Command failed -:"); ok {
			at, err := strconv.Atoi(number)
			if err != nil || i == 0 {
				t.Fatalf("ip: %s", errs)
			}
			answers[at-1].failed = lines[i-1]
		}
	}
	d := json.NewDecoder(bytes.NewReader(out))
	for i := range answers {
		if answers[i].failed != "" {
			continue
		}
		var one []answer
		if err := d.Decode(&one); err != nil || len(one) != 1 {
			t.Fatalf("query %q: %v, %d answers", queries[i], err, len(one))
		}
		answers[i] = one[0]
	}
	return answers
}

func (w *world) compare(t *testing.T, n namespace, s *fib.State) (compared int) {
	var queries []fib.Query
	var texts []string
	for range 150 {
		q, text := w.query()
		queries, texts = append(queries, q), append(texts, text)
	}
	got := n.get(t, w.flag(), texts)
	for i, q := range queries {
		if w.refusedBySource(s, q) {
			continue
		}
		a := s.Lookup(q)
		if a.Unknown != "" {
			continue
		}
		if why := differs(&a, &got[i], q); why != "" {
			t.Errorf("ip %s route get %s\nkernel: %+v\nwe: %+v\nroute: %+v\nrule: %+v\n%s", w.flag(), texts[i], got[i], a, a.Route, a.Rule, why)
			return compared
		}
		compared++
	}
	return compared
}

// refusedBySource tells of queries that the kernel refuses for their source alone, which is not Lookup's to say: sources that are none of
// the machine's for output, and none that a packet can come from for input (fib_validate_source).
func (w *world) refusedBySource(s *fib.State, q fib.Query) bool {
	if q.In != "" && q.Destination.IsMulticast() { // depends on the groups that are joined; IPv6 cannot print it
		return true
	}
	if w.ipv6 || !q.Source.IsValid() {
		return false
	}
	if q.In == "" {
		return s.AddressType(q.Source, "") != "local"
	}
	back := s.Lookup(fib.Query{Source: q.Destination, Destination: q.Source, In: "lo", Mark: q.Mark, TOS: q.TOS, Protocol: q.Protocol,
		SourcePort: q.DestinationPort, DestinationPort: q.SourcePort})
	return back.Type != "unicast" && back.Type != "none" && back.Type != "local"
}

// refusal is the kernel's answer to a look-up that ends at such a route or rule (fib_props; ip6_rt_type_to_error).
var refusal = map[string][]string{
	"none": {"Network is unreachable", "No route to host"}, "blackhole": {"Invalid argument"}, "prohibit": {"Permission denied"},
	"unreachable": {"No route to host", "Network is unreachable"},
}

func differs(a *fib.Answer, got *answer, q fib.Query) string {
	if words, refused := refusal[a.Type]; refused {
		for _, word := range words {
			if strings.Contains(got.failed, word) {
				return ""
			}
		}
		if got.Type == a.Type || a.Type == "none" && got.Type == "unreachable" {
			return ""
		}
		return "should be refused"
	}
	if got.failed != "" {
		return "should not be refused"
	}
	if kind := cmp.Or(got.Type, "unicast"); kind != a.Type {
		return "type is " + kind
	}
	if q.In != "" && a.Type != "unicast" {
		return "" // it is taken in: the loopback device is the kernel's stand-in
	}
	ways := a.Ways
	if len(ways) == 0 {
		ways = []fib.Nexthop{{Gateway: a.Gateway, Link: a.Link, Source: a.Source}}
	}
	host := got.Gateway
	if got.Via != nil {
		host = got.Via.Host
	}
	gw, _ := netip.ParseAddr(host)
	gw = gw.WithZone("")
	return wayDiffers(ways, gw, got, q)
}

func wayDiffers(ways []fib.Nexthop, gw netip.Addr, got *answer, q fib.Query) string {
	if !slices.ContainsFunc(ways, func(n fib.Nexthop) bool { return n.Gateway == gw && (n.Link == got.Dev || got.Dev == "") }) {
		return fmt.Sprintf("it goes via %v dev %s", gw, got.Dev)
	}
	if q.In != "" || q.Source.IsValid() {
		return ""
	}
	source, _ := netip.ParseAddr(got.PrefSrc)
	if !slices.ContainsFunc(ways, func(n fib.Nexthop) bool { return n.Gateway == gw && n.Link == got.Dev && n.Source == source }) {
		return "its source is " + got.PrefSrc
	}
	return ""
}
