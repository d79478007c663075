package agent

import (
	"net/http"
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/node/ippool"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/syntax/iptables"
)

// Paths of Calico's pools beside /metrics.
const (
	poolStatePath  = "/calico-pools"         // the state as JSON
	poolHealthPath = "/calico-pools/healthz" // 200, or 503 with the reasons
)

// poolReport is the state as others see it.
type poolReport struct {
	Node string `json:"node"`
	// Healthy: the sets and rules are those of the pools. Otherwise Unhealthy says why not.
	Healthy         bool     `json:"healthy"`
	Unhealthy       []string `json:"unhealthy,omitempty"`
	ChainInsertMode string   `json:"chainInsertMode,omitempty"` // Insert or Append
	// Problems are what is wrong with pools and configurations; what of them can be used is.
	Problems []poolProblem             `json:"problems,omitempty"`
	Sets     map[string][]reportedPool `json:"sets,omitempty"`  // by name
	Rules    map[string][]reportedRule `json:"rules,omitempty"` // by family, the jumps first
}

type poolProblem struct {
	Kind    string `json:"kind"` // IPPool, FelixConfiguration
	Name    string `json:"name"`
	Problem string `json:"problem"`
}

type reportedPool struct {
	Range string   `json:"range"`
	Pools []string `json:"pools"`
}

type reportedRule struct {
	Rule  string   `json:"rule"` // as iptables-save prints it
	Pools []string `json:"pools,omitempty"`
}

// poolState is what the agent lets others see; it is safe for concurrent use.
type poolState struct {
	outcome

	mu     sync.Mutex
	report poolReport
}

func newPoolState(o Options) *poolState {
	return &poolState{outcome: outcome{stale: 3 * o.SyncPeriod}, report: poolReport{Node: o.NodeName}}
}

func (s *poolState) noteProblems(problems map[*kube.Calico][]string) {
	var list []poolProblem
	for about, texts := range problems {
		for _, text := range texts {
			list = append(list, poolProblem{about.Kind, about.Name, text})
		}
	}
	slices.SortFunc(list, func(a, b poolProblem) int {
		return strings.Compare(a.Kind+"/"+a.Name+"/"+a.Problem, b.Kind+"/"+b.Name+"/"+b.Problem)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Problems = list
}

// hold notes the plans that have just been found or made to be in force.
func (s *poolState) hold(targets []*poolTarget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Sets, s.report.Rules = map[string][]reportedPool{}, map[string][]reportedRule{}
	for _, t := range targets {
		s.report.ChainInsertMode = "Insert"
		if t.plan.Append {
			s.report.ChainInsertMode = "Append"
		}
		for _, set := range []ippool.Set{t.plan.All, t.plan.Masq} {
			members := []reportedPool{}
			for _, m := range set.Members {
				members = append(members, reportedPool{m.Prefix.String(), m.Pools})
			}
			s.report.Sets[set.Name] = members
		}
		s.report.Rules[t.family.String()] = reportedRules(t.plan)
	}
}

func reportedRules(p *ippool.Plan) []reportedRule {
	var rules []reportedRule
	add := func(chain string, r *iptables.Rule, pools []string) {
		rules = append(rules, reportedRule{string(iptables.AppendRule(nil, chain, r)), pools})
	}
	for i := range p.Jumps {
		add(p.Jumps[i].Chain, &p.Jumps[i].Rule, nil)
	}
	for _, c := range p.Chains {
		for i := range c.Rules {
			add(c.Name, &c.Rules[i].Rule, c.Rules[i].Pools)
		}
	}
	return rules
}

// now is the report of this moment.
func (s *poolState) now() poolReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.report
	r.Unhealthy = s.unhealthy("the API has not told the pools yet")
	r.Healthy = len(r.Unhealthy) == 0
	return r
}

// serve adds the paths.
func (s *poolState) serve(mux *http.ServeMux) {
	mux.HandleFunc(poolStatePath, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.now()) })
	mux.HandleFunc(poolHealthPath, func(w http.ResponseWriter, _ *http.Request) {
		r := s.now()
		writeHealth(w, r.Healthy, r.Unhealthy)
	})
}
