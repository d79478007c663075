package dump

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestBatch: one process of ip prints the same as a process for each command, whatever the commands before it were.
func TestBatch(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	setUp := exec.Command("sh", "-ec", `echo 1 >/proc/sys/net/ipv6/conf/default/addr_gen_mode && ip link add br0 type bridge && ip link set br0 up && ip addr add 10.9.0.1/24 dev br0
		ip addr add fd00::1/64 dev br0 nodad && ip neigh add 10.9.0.7 lladdr 02:00:00:00:00:07 dev br0 && ip neigh add proxy 10.9.0.9 dev br0
		ip route add 10.7.0.0/16 via 10.9.0.7 table 77 && ip rule add fwmark 7 table 77 && ip -6 rule add fwmark 8 table 78
		n=0 # the kernel adds an address's local route after "ip addr add" has returned
		until ip -6 route show table local | grep -q fd00::1; do sleep 0.01; n=$((n+1)); [ $n -lt 500 ]; done`)
	setUp.Stderr = os.Stderr
	if err := ns.Do(setUp.Run); err != nil {
		t.Fatal(err)
	}
	d := &Dumper{}
	d.init()
	ip := slices.DeleteFunc(slices.Clone(capture.Dumps), func(row capture.Dump) bool { _, _, ok := ipCommand(row); return !ok })
	groups := batches(ip)
	if len(ip) != 7 || len(groups) != 3 {
		t.Fatalf("%d commands of ip in %d groups", len(ip), len(groups))
	}
	for _, rows := range groups {
		for _, rows := range [][]capture.Dump{rows, reversed(rows)} {
			checkBatch(t, d, ns, rows)
		}
	}
}

func reversed(rows []capture.Dump) []capture.Dump {
	rows = slices.Clone(rows)
	slices.Reverse(rows)
	return rows
}

func checkBatch(t *testing.T, d *Dumper, ns *netns.Namespace, rows []capture.Dump) {
	t.Helper()
	outputs, ok := d.batch(t.Context(), ns, rows)
	if !ok {
		t.Fatal("no batch")
	}
	for i, row := range rows {
		want := d.command(t.Context(), ns, row, d.modules())
		if want.Error != "" || outputs[i].Command != want.Command || !bytes.Equal(withoutTimers(outputs[i].Data), withoutTimers(want.Data)) {
			t.Errorf("%s in a batch:\n%s\nalone: %s\n%s", want.Command, outputs[i].Data, want.Error, want.Data)
		}
	}
}

// timer matches the bridge's timers, which go on between two commands.
var timer = regexp.MustCompile(`_timer":[0-9.]+`)

func withoutTimers(text []byte) []byte { return timer.ReplaceAll(bytes.TrimSpace(text), nil) }

// TestBatchFails: where ip cannot run a batch, or one command of it fails, each command runs alone.
func TestBatchFails(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	d := &Dumper{}
	rows := []capture.Dump{
		{File: "a", Commands: [][]string{{"ip", "-j", "address", "show"}}},
		{File: "b", Commands: [][]string{{"ip", "-j", "address", "show", "dev", "missing"}}},
	}
	d.init()
	outputs := d.runGroup(context.Background(), ns, rows, d.modules())
	if outputs[0].Error != "" || len(outputs[0].Data) == 0 || outputs[1].Error == "" {
		t.Errorf("%+v", outputs)
	}
}

// TestLegacyByPlainName: a plain name that is the nft variant's does not print the legacy tables.
func TestLegacyByPlainName(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	d := &Dumper{}
	d.init()
	nft, err := exec.LookPath("iptables-nft-save")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(nft, filepath.Join(dir, "iptables-save")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	row := capture.Dump{File: "iptables-legacy-save.txt", Commands: [][]string{{"iptables-legacy-missing-save"}, {"iptables-save", "-c"}}}
	if out := d.command(t.Context(), ns, row, d.modules()); out.Error == "" || out.Skipped != "" {
		t.Errorf("%+v", out)
	}
}

func TestSplitJSON(t *testing.T) {
	for text, want := range map[string]struct {
		n     int
		whole bool
	}{
		"": {0, true}, "[]\n[{}]\n": {2, true}, "[]\n[{}": {1, false}, "Command line is not complete.": {0, false}, "[][]": {2, true},
	} {
		if texts, whole := splitJSON([]byte(text)); len(texts) != want.n || whole != want.whole {
			t.Errorf("%q: %d texts, whole %v", text, len(texts), whole)
		}
	}
}
