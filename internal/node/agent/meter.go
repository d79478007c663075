package agent

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

// meters are an agent's metrics, which it shows in Prometheus's text format 0.0.4. Prometheus's own library would make the program, of
// which every node has one in memory, an eighth larger.
type meters struct {
	mu     sync.Mutex
	all    []*meter
	common string // label that every series has, as label="value"; empty: none
}

// meter is one metric: a series for each combination of its labels' values.
type meter struct {
	in                       *meters
	name, help, kind, labels string    // kind: gauge, counter, histogram; labels by commas
	bounds                   []float64 // of a histogram's buckets
	series                   map[string]*series
	read                     func() (float64, error) // the value, if it has neither labels nor series; with an error there is none
}

// series are the values of one combination of labels.
type series struct {
	in     *meters
	bounds []float64
	value  float64  // of a histogram the sum
	counts []uint64 // of a histogram, how many there were up to each bound, and how many in all
}

func (m *meters) add(kind, name, help, labels string, bounds ...float64) *meter {
	one := &meter{in: m, name: name, help: help, kind: kind, labels: labels, bounds: bounds, series: map[string]*series{}}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, one)
	slices.SortFunc(m.all, func(a, b *meter) int { return cmp.Compare(a.name, b.name) })
	return one
}

// addRead adds one whose value is read whenever it is shown.
func (m *meters) addRead(kind, name, help string, read func() (float64, error)) {
	m.add(kind, name, help, "").read = read
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// of gives the series with these values of the labels, in their order.
func (m *meter) of(values ...string) *series {
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
		s = &series{in: m.in, bounds: m.bounds, counts: make([]uint64, len(m.bounds)+1)}
		m.series[strings.Join(key, ",")] = s
	}
	return s
}

func (s *series) add(v float64) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.value += v
}

func (s *series) set(v float64) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.value = v
}

func (s *series) setNow() { s.set(float64(time.Now().UnixNano()) / 1e9) }

// observe notes a duration.
func (s *series) observe(took time.Duration) {
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

func (m *meters) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(m.text()) // whoever went away does not need it
}

// text leaves out what has no series yet.
func (m *meters) text() (b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.all {
		if one.read != nil {
			clear(one.series)
			if v, err := one.read(); err == nil {
				one.series[""] = &series{value: v}
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

func (s *series) append(b []byte, m *meter, key string) []byte {
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
