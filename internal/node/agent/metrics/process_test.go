package metrics

import (
	"regexp"
	"strconv"
	"testing"
)

// shown returns the value of a metric without labels, as it is served.
func shown(t *testing.T, m *Registry, name string) (v float64, there bool) {
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

// TestProcessMetrics compares the metrics of this process with values that any process exceeds.
func TestProcessMetrics(t *testing.T) {
	m := &Registry{}
	m.AddProcess()
	for name, least := range map[string]float64{"process_resident_memory_bytes": 1 << 20, "process_cpu_seconds_total": 1e-6,
		"process_start_time_seconds": 1.7e9, "process_open_fds": 3, "go_goroutines": 1} {
		if v, _ := shown(t, m, name); v < least {
			t.Errorf("%s is %v", name, v)
		}
	}
}
