package serviceproxy

import (
	"regexp"
	"strconv"
	"testing"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/testing/kerneltest"
)

// shown returns the value of a metric without labels, as it is served.
func shown(t *testing.T, m *metrics.Registry, name string) (v float64, there bool) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(m.Text())
	if found == nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Error(err)
	}
	return v, true
}

// TestCountedPackets: what rules count with accounting objects is shown, and nothing where there are none.
func TestCountedPackets(t *testing.T) {
	const name = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
	ns := newTestNamespace(t)
	sh := func(command string) {
		t.Helper()
		if _, err := (program.Command{Path: "sh", Args: []string{"-c", command}, In: ns.Do}).Output(t.Context()); err != nil {
			t.Error(err)
		}
	}
	m := &metrics.Registry{}
	NewMetrics(m, options.BackendIPTables)
	err := ns.Do(func() error {
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
