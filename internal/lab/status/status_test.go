package status

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProblems(t *testing.T) {
	s := Status{
		Ready:      true,
		Components: []Component{{Name: "etcd", LastExit: "signal: killed", Restarts: 2}, {Name: "kube-apiserver", Pid: 7}},
		Nodes:      []Node{{Name: "node-0", Agent: Component{Name: "node-0", Pid: 8}, Error: "disk on fire"}},
		Hosts:      []Host{{Name: "testvm", App: "nginx"}, {Name: "client"}},
		Frontends: []Frontend{{Address: "203.0.113.10", Port: 80, Total: 1},
			{Address: "203.0.113.11", Port: 80, Total: 1, Healthy: []string{"node-0"}}},
	}
	want := []string{
		"etcd is down: signal: killed; it is started again (2 times so far); its log: packetwalk logs etcd",
		"node-0: disk on fire",
		"testvm: its application nginx has ended",
		"203.0.113.10:80 has no healthy back end: the load balancer drops new connections",
	}
	if diff := cmp.Diff(want, s.DerivedProblems()); diff != "" {
		t.Error(diff)
	}
}

// TestGroupProblem: status counts a group that does not come up among what is broken.
func TestGroupProblem(t *testing.T) {
	s := Status{Ready: true, ContainerGroups: []ContainerGroup{{Name: "well", ProxyPid: -1},
		{Name: "default-p", State: "Pending", Error: "no free addresses"}}}
	found := s.DerivedProblems()
	if !slices.ContainsFunc(found, func(p string) bool {
		return strings.Contains(p, "default-p") && strings.Contains(p, "no free addresses")
	}) || len(found) != 1 {
		t.Errorf("%q", found)
	}
}
