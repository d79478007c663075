package nodes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Lines that felix 3.31 wrote in a lab.
const (
	refusedLine = `2026-11-27 22:52:12.540 [WARNING][32140] felix/validation_filter.go 77: Validation failed; treating as missing ` +
		`error=error with field Selector = '(app ==) && projectcalico.org/namespace == 'blue'' key=Policy(tier=default, name=blue/default.bad-selector) ` +
		`value=selector:"(app ==) && projectcalico.org/namespace == 'blue'",inbound:allow,outbound:,untracked:false`
	blockedLine = `2026-11-27 22:52:57.001 [INFO][684] felix/watchercache.go 274: Failed to perform list of current data during resync ` +
		`ListRoot=".../v3/pc.org/globalnetworkpolicies" error=invalid name for named port (nope nope)`
)

func TestFelixRefusal(t *testing.T) {
	for name, test := range map[string]struct {
		line, path string
		want       refusedPolicy
	}{
		"a policy of Calico": {refusedLine, "/apis/crd.projectcalico.org/v1/namespaces/blue/networkpolicies/default.bad-selector",
			refusedPolicy{namespace: "blue", name: "default.bad-selector", words: "error with field Selector = '(app ==) && projectcalico.org/namespace == 'blue''"}},
		"of Kubernetes": {strings.ReplaceAll(refusedLine, "blue/default.bad-selector", "blue/knp.default.p"),
			"/apis/networking.k8s.io/v1/namespaces/blue/networkpolicies/p",
			refusedPolicy{namespace: "blue", name: "knp.default.p", words: "error with field Selector = '(app ==) && projectcalico.org/namespace == 'blue''"}},
		"a global one": {strings.ReplaceAll(refusedLine, "name=blue/", "name="), "/apis/crd.projectcalico.org/v1/globalnetworkpolicies/default.bad-selector",
			refusedPolicy{name: "default.bad-selector", words: "error with field Selector = '(app ==) && projectcalico.org/namespace == 'blue''"}},
		"a list": {blockedLine, "", refusedPolicy{list: "globalnetworkpolicies", words: "invalid name for named port (nope nope)"}},
		"a network set": {`2026-11-28 02:31:00.000 [WARNING][1] felix/globalnetworksetprocessor.go 60: Invalid CIDR CIDR="10.0.0.300/33" ` +
			`error=invalid CIDR address: 10.0.0.300/33 networkSet="bad"`, "/apis/crd.projectcalico.org/v1/globalnetworksets/bad",
			refusedPolicy{set: true, name: "bad", words: "10.0.0.300/33: invalid CIDR address: 10.0.0.300/33"}},
		"others": {"2026-11-27 22:52:12.545 [INFO][32140] felix/x.go 187: Updating selector id=Policy(tier=default, name=a/b)", "", refusedPolicy{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := felixRefusal(test.line)
			if got != test.want || ok != (test.want != refusedPolicy{}) {
				t.Errorf("got %+v, %t", got, ok)
			}
			if path, _, _ := got.object(); test.path != "" && path != test.path {
				t.Errorf("path %s", path)
			}
		})
	}
}

// TestFelixFailure: the last words of a felix that ends, with those of a program that it gave up on.
func TestFelixFailure(t *testing.T) {
	const output = `2026-11-28 02:31:00.1 [WARNING][9] felix/table.go 1470: Failed to execute ip(6)tables-restore command error=exit status 2 ` +
		`errorOutput="iptables-nft-restore v1.8.9 (nf_tables): multiple -p flags not allowed\n" input="*filter\n" output=""`
	for name, test := range map[string]struct{ lines, want string }{
		"a panic": {`2026-11-28 02:30:00.1 [PANIC][9] felix/policy.go 679: Unknown rule action action="permit"`, `Unknown rule action action="permit"`},
		"a program": {output + "\n" + `2026-11-28 02:31:02.1 [PANIC][9] felix/table.go 1400: Failed to program iptables, giving up after retries error=exit status 2`,
			`Failed to program iptables, giving up after retries error=exit status 2: iptables-nft-restore v1.8.9 (nf_tables): multiple -p flags not allowed\n`},
		"others": {`2026-11-28 02:30:00.1 [INFO][9] felix/policy.go 679: Unknown`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPolicyEngine(nil)
			said := ""
			for line := range strings.Lines(test.lines) {
				said += p.noteFailure(line)
			}
			if said != test.want || strings.Contains(p.lastFailure(), "policy has an effect until it runs: ") != (test.want != "") {
				t.Errorf("got %q, %q", said, p.lastFailure())
			}
		})
	}
}

// TestTail: each whole line once, also past the moment when the log is set aside.
func TestTail(t *testing.T) {
	log := tail{path: filepath.Join(t.TempDir(), "log")}
	for _, step := range []struct{ content, want string }{
		{"one\ntw", "one"}, {"one\ntwo\n", "two"}, {"one\ntwo\n", ""}, {"new\n", "new"},
	} {
		if err := os.WriteFile(log.path, []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		lines, err := log.lines()
		if got := strings.TrimSpace(strings.Join(lines, "")); err != nil || got != step.want {
			t.Errorf("after %q: %q, %v; want %q", step.content, got, err, step.want)
		}
	}
}
