// Package status has what `packetwalk status` prints: the types of a lab's status, and the problems that follow from them.
package status

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/base/supervise"
)

// Status says how a lab is: `packetwalk status -o json`.
type Status struct {
	Name       string      `json:"name"`
	Ready      bool        `json:"ready"` // the cluster came up; Problems may have come since
	Pid        int         `json:"pid"`   // of the lab process; 0 when it does not run
	APIServer  string      `json:"apiServer,omitempty"`
	Kubeconfig string      `json:"kubeconfig,omitempty"`
	Azure      *Azure      `json:"azure,omitempty"`
	Components []Component `json:"components"`
	Nodes      []Node      `json:"nodes"`
	Hosts      []Host      `json:"hosts"`
	// ContainerGroups are the pods of the virtual node; empty without one.
	ContainerGroups []ContainerGroup `json:"containerGroups"`
	Frontends       []Frontend       `json:"frontends"`
	Outbound        []Outbound       `json:"outbound"`
	IgnoredPolicies []IgnoredPolicy  `json:"ignoredPolicies"` // NetworkPolicies, which nothing in the lab enforces
	Warnings        []string         `json:"warnings"`        // what may soon be broken, or is being changed, in words
	Problems        []string         `json:"problems"`        // what is broken, in words; empty when all is well
}

// Azure is the lab's Azure Resource Manager, for az, Terraform and Azure's SDKs on this machine.
type Azure struct {
	Endpoint     string `json:"endpoint"`
	Tenant       string `json:"tenant"`
	Subscription string `json:"subscription"`
	Token        string `json:"token"` // a bearer token, and the secret of any service principal
	CA           string `json:"ca"`    // the file with the certificate that signs the endpoint's
}

// Component is a process that the lab keeps running.
type Component = supervise.State

// Node is a Kubernetes node.
type Node struct {
	Name    string    `json:"name"`
	Address string    `json:"address"`
	Pods    int       `json:"pods"` // that run on it; -1 when the lab process does not tell
	Agent   Component `json:"agent"`
	// KubeProxy is upstream's, where spec.serviceProxy.implementation says so.
	KubeProxy *Component `json:"kubeProxy,omitempty"`
	// CalicoFelix is Calico's agent, where spec.network.policy says so.
	CalicoFelix *Component `json:"calicoFelix,omitempty"`
	// LocalDNS is the node's DNS cache, where spec.nodeOptions.localDNS says so.
	LocalDNS *Component `json:"localDNS,omitempty"`
	// Machine is the first process of a node with runtime containerd; its end is that of all that runs there.
	Machine *Component `json:"machine,omitempty"`
	Error   string     `json:"error,omitempty"` // the last of its kubelet
}

// Host is a VM, an internet host, or a name server outside the cluster.
type Host struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"` // "vm", "internet" or "azure": Azure's own name server
	Address  string `json:"address"`
	PublicIP string `json:"publicIP,omitempty"`
	App      string `json:"app,omitempty"`
	// IPForwarding says that it forwards what is not for itself, as a virtual appliance.
	IPForwarding bool `json:"ipForwarding,omitempty"`
	Pid          int  `json:"pid,omitempty"` // of the application; 0 when it has none or it is down
}

// ContainerGroup is a pod of the virtual node, as Azure knows it.
type ContainerGroup struct {
	Name       string `json:"name"`
	Address    string `json:"address"`
	State      string `json:"state"`           // "Pending", "Running", "Succeeded" or "Failed"
	Error      string `json:"error,omitempty"` // why it does not come up
	Ready      int    `json:"ready"`           // containers that are
	Containers int    `json:"containers"`
	ProxyPid   int    `json:"proxyPid"` // of its service proxy; 0 while that is down, -1 when it has none
}

// Frontend is a load balancing rule and the state of its back ends.
type Frontend struct {
	Rule    string   `json:"rule"`
	Address string   `json:"address"`
	Port    uint16   `json:"port"`
	Healthy []string `json:"healthy"` // back ends, by machine, whose probe succeeds
	Total   int      `json:"total"`
	// Denied says for machines whose probe a network security group denies which rule does.
	Denied map[string]string `json:"denied,omitempty"`
	// Probed says for machines whose probe fails where the load balancer probes them.
	Probed map[string]netip.AddrPort `json:"probed,omitempty"`
}

// Outbound is how far the outbound ports of a node are used (SNAT ports, in Azure's words).
type Outbound struct {
	Node    string       `json:"node"`
	Ports   int          `json:"ports"`   // towards one destination, over all front ends
	InUse   int          `json:"inUse"`   // that some flow has
	Fullest *OutboundUse `json:"fullest"` // the destination that has most of them; null when nothing has left
	// Frontends has each front end's share of Ports.
	Frontends []OutboundFrontend `json:"frontends"`
}

// OutboundFrontend tells how many ports of a public address a node has towards one destination.
type OutboundFrontend struct {
	Address netip.Addr `json:"address"`
	Ports   int        `json:"ports"`
}

// OutboundUse is how many of a node's ports flows to one destination have. The same port serves other destinations too.
type OutboundUse struct {
	Protocol    string `json:"protocol"`    // "tcp" or "udp"
	Destination string `json:"destination"` // address:port
	InUse       int    `json:"inUse"`
	Percent     int    `json:"percent"` // of the node's ports
}

// IgnoredPolicy is a NetworkPolicy that nothing enforces, and the pods of its namespace that it selects.
type IgnoredPolicy struct {
	Namespace   string                    `json:"namespace"`
	Name        string                    `json:"name"`
	PolicyTypes []networkingv1.PolicyType `json:"policyTypes"`
	PodSelector metav1.LabelSelector      `json:"podSelector"`
}

// The kinds of hosts.
const (
	KindVM       = "vm"
	KindInternet = "internet"
	KindAzure    = "azure" // of Azure's own
)

// outboundWarning is how much of a node's ports, in percent, towards one destination is worth a warning.
const outboundWarning = 80

// DerivedWarnings returns what the other fields say may soon be broken, in words.
func (s *Status) DerivedWarnings() []string {
	found := []string{}
	for _, o := range s.Outbound {
		if f := o.Fullest; f != nil && f.Percent >= outboundWarning {
			found = append(found, fmt.Sprintf("%s has %d of its %d outbound ports in use towards %s %s: without any left, new connections to there are dropped; "+
				"keep connections open and use them again, or add front ends", o.Node, f.InUse, o.Ports, f.Protocol, f.Destination))
		}
	}
	return found
}

// New returns the status of a lab of which only the name and its process are known.
func New(name string, pid int) Status {
	return Status{
		Name: name, Pid: pid, Components: []Component{}, Nodes: []Node{}, Hosts: []Host{}, ContainerGroups: []ContainerGroup{},
		Frontends: []Frontend{}, Outbound: []Outbound{}, IgnoredPolicies: []IgnoredPolicy{}, Warnings: []string{}, Problems: []string{},
	}
}

// Add adds problems and warnings.
func (s *Status) Add(problems, warnings []string) {
	s.Problems, s.Warnings = append(s.Problems, problems...), append(s.Warnings, warnings...)
}

// MaxConsecutiveExits is after how many ends in a row a process is crash-looping, so that the lab cannot start. A process may end once or
// twice because the machine is slow.
const MaxConsecutiveExits = 3

// steadyRun is how long a process that ended several times in a row has to run until it is no problem: longer than one that cannot start
// takes to end.
const steadyRun = 10 * time.Second

// DerivedProblems returns what the other fields say is broken, in words.
func (s *Status) DerivedProblems() []string {
	found := []string{}
	down := func(c Component) {
		text := c.Name + " is down"
		if c.Pid != 0 {
			if c.Failures < MaxConsecutiveExits || time.Since(c.Since) >= steadyRun {
				return
			}
			text = c.Name + " is crash-looping"
		}
		if c.LastExit != "" {
			text += ": " + c.LastExit
		}
		found = append(found, fmt.Sprintf("%s; it is started again (%d times so far); its log: packetwalk logs %s", text, c.Restarts, c.Name))
	}
	if !s.Ready {
		return found // what is not there yet is not broken
	}
	for _, c := range s.Components {
		down(c)
	}
	for _, n := range s.Nodes {
		down(n.Agent)
		for _, more := range []*Component{n.Machine, n.KubeProxy, n.CalicoFelix, n.LocalDNS} {
			if more != nil {
				down(*more)
			}
		}
		if n.Error != "" {
			found = append(found, n.Name+": "+n.Error)
		}
	}
	for _, h := range s.Hosts {
		if h.App != "" && h.Pid == 0 {
			found = append(found, fmt.Sprintf("%s: its application %s has ended", h.Name, h.App))
		}
	}
	for _, g := range s.ContainerGroups {
		if g.Error != "" {
			found = append(found, fmt.Sprintf("container group %s does not come up, and is tried again: %s", g.Name, g.Error))
		}
		if g.ProxyPid == 0 && g.State == aci.GroupRunning {
			found = append(found, fmt.Sprintf("container group %s: its service proxy is down and is started again; its log: packetwalk logs %s",
				g.Name, g.Name))
		}
	}
	for _, f := range s.Frontends {
		if len(f.Healthy) == 0 && f.Total > 0 {
			text := fmt.Sprintf("%s:%d has no healthy back end: the load balancer drops new connections", f.Address, f.Port)
			for _, machine := range slices.Sorted(maps.Keys(f.Denied)) {
				text += fmt.Sprintf("; %s the probe of %s", f.Denied[machine], machine)
			}
			found = append(found, text)
		}
	}
	return found
}

// RepairedByUp returns the end of a problem that 'packetwalk up' repairs in a lab of this name.
func RepairedByUp(name string) string { return "; 'packetwalk up --name " + name + "' repairs it" }

// OneLine returns the text of an error on one line.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
