package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/syntax/ipset"
	"packetwalk.dev/internal/testing/kerneltest"
)

func hashNet(name string, members ...string) ipset.Set {
	s := ipset.Set{Name: name, Type: "hash:net", Options: "family inet hashsize 1024 maxelem 1048576"}
	if len(members) > 0 && strings.Contains(members[0], ":") {
		s.Options = "family inet6 hashsize 1024 maxelem 1048576"
	}
	for _, m := range members {
		s.Members = append(s.Members, ipset.Member{Element: m})
	}
	return s
}

func inNamespace(t *testing.T, ns *kernel.Namespace, command string) (string, error) {
	t.Helper()
	cmd := exec.Command("sh", "-c", command)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Do(cmd.Run)
	return out.String(), err
}

func must(t *testing.T, ns *kernel.Namespace, command string) string {
	t.Helper()
	out, err := inNamespace(t, ns, command)
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return out
}

// show is the namespace's sets as the kernel has them, without what it adds.
func show(t *testing.T, sets kernel.IPSets) string {
	t.Helper()
	list, err := sets.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, s := range list {
		var members []string
		for _, m := range s.Members {
			members = append(members, m.Element)
		}
		slices.Sort(members)
		lines = append(lines, fmt.Sprintf("%s %s %s: %s", s.Name, s.Type, s.Option("family"), strings.Join(members, " ")))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func update(t *testing.T, ns *kernel.Namespace, want ...ipset.Set) ([]string, error) {
	return ns.IPSets().Update(t.Context(), func([]ipset.Set) []ipset.Set { return want })
}

func TestIPSets(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := namespace(t, filepath.Join(t.TempDir(), "sets"))
	sets := ns.IPSets()
	ensure := func(want []string, s ...ipset.Set) {
		t.Helper()
		changed, err := update(t, ns, s...)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(changed, want) {
			t.Errorf("changed %v, want %v", changed, want)
		}
	}
	a, six := hashNet("a", "10.0.0.0/8", "10.1.2.3"), hashNet("six", "fd00:10:240::/48", "2001:db8::1")
	ensure([]string{"a", "six"}, a, six)
	ensure(nil, a, six)
	if got, want := show(t, sets), "a hash:net inet: 10.0.0.0/8 10.1.2.3\nsix hash:net inet6: 2001:db8::1 fd00:10:240::/48"; got != want {
		t.Errorf("sets\n%s\nwant\n%s", got, want)
	}

	// A set in use changes, in steps too, and is not made anew.
	must(t, ns, "iptables -A FORWARD -m set --match-set a src")
	ensure([]string{"a"}, hashNet("a", "10.0.0.0/8", "10.9.0.0/16"), hashNet("a", "10.9.0.0/16"), six)
	other := hashNet("a")
	other.Type = "hash:ip"
	if _, err := update(t, ns, other); !errors.Is(err, kernel.ErrSetInUse) {
		t.Errorf("another type for a set in use: %v", err)
	}

	// What others and a killed Update left behind.
	must(t, ns, "ipset flush a; ipset create a-tmp hash:ip; ipset create other bitmap:port range 0-9")
	ensure([]string{"a"}, hashNet("a", "10.9.0.0/16"), six)
	must(t, ns, "ipset create a-tmp hash:net")
	ensure(nil, hashNet("a", "10.9.0.0/16"))
	if got, want := show(t, sets), "a hash:net inet: 10.9.0.0/16\nother bitmap:port : \nsix hash:net inet6: 2001:db8::1 fd00:10:240::/48"; got != want {
		t.Errorf("sets\n%s\nwant\n%s", got, want)
	}

	must(t, ns, "iptables -F FORWARD")
	ensure([]string{"a"}, other)
	if _, err := update(t, ns, hashNet(strings.Repeat("x", 28))); err == nil {
		t.Error("a name without room for the temporary one")
	}
}

// TestIPSetSwap changes a set between two states that have a member in common, over and over, while a program tests that member: it is
// never missing.
func TestIPSetSwap(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := namespace(t, filepath.Join(t.TempDir(), "swap"))
	one, two := hashNet("s", "10.0.0.0/8", "10.240.0.0/16"), hashNet("s", "172.17.0.0/16", "10.240.0.0/16")
	if _, err := update(t, ns, one); err != nil {
		t.Fatal(err)
	}
	// It ends, with success, when a file says so.
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	watch := exec.CommandContext(ctx, "sh", "-c",
		`n=0; while ipset -q test s 10.240.1.2; do n=$((n+1)); [ -e "$0" ] && echo $n && exit 0; done; echo missing after $n; exit 1`,
		filepath.Join(t.TempDir(), "done"))
	var out strings.Builder
	watch.Stdout = &out
	if err := ns.Start(watch); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		want := one
		if i%2 == 0 {
			want = two
		}
		if changed, err := update(t, ns, want); err != nil || len(changed) != 1 {
			t.Fatal(changed, err)
		}
	}
	must(t, ns, "touch "+watch.Args[len(watch.Args)-1])
	if err := watch.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	t.Logf("tested %s times during 60 changes", strings.TrimSpace(out.String()))
}
