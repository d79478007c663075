package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"packetwalk.dev/internal/cluster"
	"packetwalk.dev/internal/ipmasq"
)

// masqStatusTimeout is how long a node's agent may take to tell about its ip-masq-agent. One that does not is another problem's.
const masqStatusTimeout = time.Second

// masqReport is what is read of packetwalk-node's state of the ip-masq-agent.
type masqReport struct {
	Config    *struct{}        `json:"config"` // null before the first that could be applied
	Unhealthy []string         `json:"unhealthy"`
	Problems  []ipmasq.Problem `json:"problems"`
}

// masqStatus asks the nodes what their ip-masq-agents complain about: as problems what keeps a configuration from being in force, as warnings
// what is likely not meant. What many nodes say is said once.
func (l *lab) masqStatus() (problems, warnings []string) {
	if !l.ready.Load() {
		return nil, nil
	}
	l.mu.Lock()
	none, nodes := l.cluster.Spec.Network.IPMasqAgent == cluster.IPMasqNone, slices.Clone(l.nodes)
	l.mu.Unlock()
	if none {
		return nil, nil
	}
	reports := make([]masqReport, len(nodes))
	var asked sync.WaitGroup
	for i, n := range nodes {
		asked.Go(func() { reports[i] = n.masqReport() })
	}
	asked.Wait()
	return masqComplaints(reports)
}

func masqComplaints(reports []masqReport) (problems, warnings []string) {
	unhealthy, suspect := map[string]int{}, map[string]int{}
	for _, r := range reports {
		if r.Config == nil && len(r.Problems) == 0 {
			continue // it has just started
		}
		for _, what := range r.Unhealthy {
			unhealthy[what]++
		}
		for _, p := range r.Problems {
			if p.Severity == ipmasq.Warning {
				suspect["ConfigMap "+p.ConfigMap+", "+p.String()]++
			}
		}
	}
	list := func(what map[string]int) (lines []string) {
		for _, text := range slices.Sorted(maps.Keys(what)) {
			lines = append(lines, fmt.Sprintf("ip-masq-agent of %d of %d nodes: %s", what[text], len(reports), text))
		}
		return lines
	}
	return list(unhealthy), list(suspect)
}

// masqReport is empty where the agent does not answer.
func (n *node) masqReport() (r masqReport) {
	ctx, cancel := context.WithTimeout(context.Background(), masqStatusTimeout)
	defer cancel()
	transport := &http.Transport{DialContext: n.ns.Dial, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(masqAgentPort)+masqAgentState, nil)
	if err != nil {
		return r
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return r
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&r) != nil {
		return masqReport{}
	}
	return r
}
