package agent

import (
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/testing/kerneltest"
)

// shown is the value of a metric without labels, as it is served.
func shown(t *testing.T, m *metrics, name string) (v float64, there bool) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(m.text())
	if found == nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Error(err)
	}
	return v, true
}

// TestProcessMetrics are those of this process.
func TestProcessMetrics(t *testing.T) {
	m := newMetrics(BackendNFTables)
	for name, least := range map[string]float64{"process_resident_memory_bytes": 1 << 20, "process_cpu_seconds_total": 1e-6,
		"process_start_time_seconds": 1.7e9, "process_open_fds": 3, "go_goroutines": 1} {
		if v, _ := shown(t, m, name); v < least {
			t.Errorf("%s is %v", name, v)
		}
	}
}

// TestCountedPackets: what rules count with accounting objects is shown, and nothing where there are none.
func TestCountedPackets(t *testing.T) {
	kerneltest.NeedRoot(t)
	const name = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
	ns, err := netns.Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	})
	sh := func(command string) {
		t.Helper()
		if _, err := (program.Command{Path: "sh", Args: []string{"-c", command}, In: ns.Do}).Output(t.Context()); err != nil {
			t.Error(err)
		}
	}
	m := newMetrics(BackendIPTables)
	err = ns.Do(func() error {
		if v, there := shown(t, m, name); there {
			t.Errorf("without an object: %v", v)
		}
		if err := ensureCounters(); err != nil {
			return err
		}
		if v, there := shown(t, m, name); v != 0 || !there {
			t.Errorf("before any packet: %v, %v", v, there)
		}
		return nil
	})
	if err != nil {
		kerneltest.Missing(t, "accounting objects: %v", err)
	}
	sh("ip link set lo up && iptables -A OUTPUT -o lo -m nfacct --nfacct-name " + iptables.CounterInvalid + " -j DROP")
	sh("ping -c 2 -i 0.1 -W 0.1 127.0.0.1 || true")
	_ = ns.Do(func() error {
		if v, _ := shown(t, m, name); v != 2 {
			t.Errorf("after two packets: %v", v)
		}
		return nil
	})
}
