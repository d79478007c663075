// Package metrics keeps metrics and shows them in Prometheus's text format 0.0.4. Prometheus's own library would make the program, of which
// every node has one in memory, an eighth larger.
package metrics

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Registry holds the metrics of a program. Its zero value is empty and ready to use.
type Registry struct {
	mu     sync.Mutex
	all    []*Metric
	common string // label that every series has, as label="value"; empty: none
}

// Metric has a series for each combination of its labels' values.
type Metric struct {
	in                       *Registry
	name, help, kind, labels string    // kind: gauge, counter, histogram; labels by commas
	bounds                   []float64 // of a histogram's buckets
	series                   map[string]*Series
	read                     func() (float64, error) // the value, if it has neither labels nor series; with an error there is none
}

// Series holds the values of one combination of labels.
type Series struct {
	in     *Registry
	bounds []float64
	value  float64  // of a histogram the sum
	counts []uint64 // of a histogram, how many there were up to each bound, and how many in all
}

// Add makes a metric of a kind (gauge, counter, histogram) with these labels, separated by commas, and for a histogram these bounds of its
// buckets.
func (m *Registry) Add(kind, name, help, labels string, bounds ...float64) *Metric {
	one := &Metric{in: m, name: name, help: help, kind: kind, labels: labels, bounds: bounds, series: map[string]*Series{}}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, one)
	slices.SortFunc(m.all, func(a, b *Metric) int { return cmp.Compare(a.name, b.name) })
	return one
}

// AddRead makes a metric whose value is read whenever it is shown.
func (m *Registry) AddRead(kind, name, help string, read func() (float64, error)) {
	m.Add(kind, name, help, "").read = read
}

// SetCommon gives every series a label. Call it before the metrics are shown.
func (m *Registry) SetCommon(label, value string) {
	m.common = label + `="` + escape.Replace(value) + `"`
}

// Kinds returns the kind of each metric by its name.
func (m *Registry) Kinds() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	kinds := map[string]string{}
	for _, one := range m.all {
		kinds[one.name] = one.kind
	}
	return kinds
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// Of returns the series with these values of the labels, in their order.
func (m *Metric) Of(values ...string) *Series {
	var key []string
	if m.labels != "" {
		for i, label := range strings.Split(m.labels, ",") {
			key = append(key, label+`="`+escape.Replace(values[i])+`"`)
		}
		slices.Sort(key)
	}
	m.in.mu.Lock()
	defer m.in.mu.Unlock()
	s, ok := m.series[strings.Join(key, ",")]
	if !ok {
		s = &Series{in: m.in, bounds: m.bounds, counts: make([]uint64, len(m.bounds)+1)}
		m.series[strings.Join(key, ",")] = s
	}
	return s
}

// Add adds to the value.
func (s *Series) Add(v float64) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.value += v
}

// Set replaces the value.
func (s *Series) Set(v float64) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.value = v
}

// SetNow sets the value to the present time, in seconds since 1970.
func (s *Series) SetNow() { s.Set(float64(time.Now().UnixNano()) / 1e9) }

// Observe adds a duration to a histogram.
func (s *Series) Observe(took time.Duration) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.value += took.Seconds()
	for i, bound := range s.bounds {
		if took.Seconds() <= bound {
			s.counts[i]++
		}
	}
	s.counts[len(s.bounds)]++
}

// ServeHTTP implements http.Handler.
func (m *Registry) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(m.Text()) // whoever went away does not need it
}

// Text returns all metrics except those that have no series yet.
func (m *Registry) Text() (b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.all {
		if one.read != nil {
			clear(one.series)
			if v, err := one.read(); err == nil {
				one.series[""] = &Series{value: v}
			}
		}
		if len(one.series) > 0 {
			b = fmt.Appendf(b, "# HELP %s %s\n# TYPE %s %s\n", one.name, one.help, one.name, one.kind)
		}
		for _, key := range slices.Sorted(maps.Keys(one.series)) {
			b = one.series[key].append(b, one, key)
		}
	}
	return b
}

func (s *Series) append(b []byte, m *Metric, key string) []byte {
	line := func(suffix, key, value string) {
		switch common := m.in.common; {
		case common != "" && key != "":
			key += "," + common
		case common != "":
			key = common
		}
		if key != "" {
			key = "{" + key + "}"
		}
		b = fmt.Appendf(b, "%s%s%s %s\n", m.name, suffix, key, value)
	}
	if m.kind != "histogram" {
		line("", key, formatNumber(s.value))
		return b
	}
	more := key
	if more != "" {
		more += ","
	}
	for i, count := range s.counts {
		le := "+Inf"
		if i < len(s.bounds) {
			le = formatNumber(s.bounds[i])
		}
		line("_bucket", more+`le="`+le+`"`, strconv.FormatUint(count, 10))
	}
	line("_sum", key, formatNumber(s.value))
	line("_count", key, strconv.FormatUint(s.counts[len(s.bounds)], 10))
	return b
}

func formatNumber(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
