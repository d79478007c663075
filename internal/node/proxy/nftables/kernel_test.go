package nftables

import (
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/kerneltest"
)

func namespace(t testing.TB, name string) *netns.Namespace {
	t.Helper()
	kerneltest.NeedRoot(t)
	ns, err := netns.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// nftablesIn has a socket that is closed before the namespace is removed, which an open one would keep.
func nftablesIn(t testing.TB, ns *netns.Namespace) Kernel {
	nft := &ruleset.NFTables{NetNS: ns.FD()}
	t.Cleanup(nft.Close)
	return nft
}

func syncerIn(t testing.TB, ns *netns.Namespace, c proxy.Config) *Syncer {
	return NewSyncer(c, NewRules(nftablesIn(t, ns)))
}

// allOf has service ports by service.
func allOf(ports []service.Port) *service.Ports {
	all := service.NewPorts()
	for key, list := range byService(ports) {
		all.Put(key, list)
	}
	return all
}

func byService(ports []service.Port) map[service.Key][]service.Port {
	by := map[service.Key][]service.Port{}
	for _, p := range ports {
		key := service.Key{Namespace: p.Namespace, Service: p.Service}
		by[key] = append(by[key], p)
	}
	return by
}

// sync gives a syncer service ports, of which any may have changed.
func sync(ctx context.Context, s *Syncer, ports []service.Port) (proxy.Result, error) {
	all := allOf(ports)
	changed := all.Services()
	if s.state != nil {
		changed = slices.AppendSeq(changed, maps.Keys(s.state.services))
	}
	return s.Sync(ctx, all, changed)
}

func mustSync(t testing.TB, s *Syncer, ports []service.Port) proxy.Result {
	t.Helper()
	r, err := sync(t.Context(), s, ports)
	if err != nil || r.CleanupErr != nil {
		t.Fatal(err, r.CleanupErr)
	}
	return r
}

// list returns nft's listing of a namespace.
func list(t testing.TB, ns *netns.Namespace) string {
	t.Helper()
	out, err := program.Command{Path: "nft", Args: []string{"list", "ruleset"}, In: ns.Do}.Output(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

var listedElements = regexp.MustCompile(`(?s)elements = \{ (.*?) \}`)

// sorted returns a listing with the elements of sets in order: the kernel has them in another order each time.
func sorted(listing string) string {
	return listedElements.ReplaceAllStringFunc(listing, func(s string) string {
		elements := strings.Split(listedElements.FindStringSubmatch(s)[1], ",")
		for i := range elements {
			elements[i] = "\n\t\t\t" + strings.TrimSpace(elements[i])
		}
		slices.Sort(elements)
		return "elements = {" + strings.Join(elements, ",") + " }"
	})
}

// listed compares what nft prints with a file, by which the reasons of rules are tested, too. The file is of nft 1.0.6: a version that
// prints other forms is to print them of the file's rules as well.
func listed(t *testing.T, scenario, text string) {
	t.Helper()
	text = sorted(text)
	path := filepath.Join("testdata/listed", strings.TrimSuffix(filepath.Base(scenario), "ar"))
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	diff := cmp.Diff(string(want), text)
	if diff == "" {
		return
	}
	if file := namespace(t, "file"); ruleset.ApplyNFT(t.Context(), file, string(want)) == nil {
		diff = cmp.Diff(sorted(list(t, file)), text)
	}
	if diff != "" {
		t.Errorf("%s (-want +listed); -update rewrites it:\n%s", path, diff)
	}
}

var noUpdates = regexp.MustCompile(`(?m)^\t\tupdate @.*\n`)

// TestKernelHolds: what the kernel holds of each scenario is what was written; what nft prints of it can be loaded again and is the same.
func TestKernelHolds(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(err, "no scenarios")
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s := parseScenario(t, archive.Files)
			ns := namespace(t, "first")
			first := syncerIn(t, ns, s.config)
			r := mustSync(t, first, s.ports)
			if !r.Full || r.Written[TableName] != r.Total[TableName] {
				t.Errorf("first sync: %+v", r)
			}
			if names, err := first.Repair(t.Context()); err != nil || len(names) > 0 {
				t.Errorf("repaired what is whole: %v, %v", names, err)
			}
			text := list(t, ns)
			listed(t, path, text)
			if s.config.Family == service.IPv6 {
				// nft 1.0.6 aborts on every "update @map { ip6 saddr : ip6 daddr . th dport }" that it is to load.
				text = noUpdates.ReplaceAllString(text, "")
			}
			other := namespace(t, "other")
			if err := ruleset.ApplyNFT(t.Context(), other, text); err != nil {
				t.Fatalf("nft does not load what it printed: %v\n%s", err, text)
			}
			if diff := cmp.Diff(text, list(t, other)); diff != "" {
				t.Errorf("loaded again it is another (-printed +loaded):\n%s", diff)
			}
			second := syncerIn(t, other, s.config)
			if r := mustSync(t, second, s.ports); r.Written[TableName] != 0 {
				t.Errorf("elements were loaded otherwise: %+v", r)
			}
			if diff := cmp.Diff(list(t, ns), list(t, other)); diff != "" {
				t.Errorf("a restart changes something (-before +after):\n%s", diff)
			}
		})
	}
}
