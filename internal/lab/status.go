package lab

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
}

// OutboundUse is how many of a node's ports flows to one destination have. The same port serves other destinations too.
type OutboundUse struct {
	Protocol    string `json:"protocol"`    // "tcp" or "udp"
	Destination string `json:"destination"` // address:port
	InUse       int    `json:"inUse"`
	Percent     int    `json:"percent"` // of the node's ports
}

// outboundWarning is how much of a node's ports, in percent, towards one destination is worth a warning.
const outboundWarning = 80

// warnings are what the parts of the status say may soon be broken.
func (s *Status) warnings() []string {
	found := []string{}
	for _, o := range s.Outbound {
		if f := o.Fullest; f != nil && f.Percent >= outboundWarning {
			found = append(found, fmt.Sprintf("%s has %d of its %d outbound ports in use towards %s %s: without any left, new connections to there are dropped; "+
				"keep connections open and use them again, or add front ends", o.Node, f.InUse, o.Ports, f.Protocol, f.Destination))
		}
	}
	return found
}

// newStatus is the status of a lab of which nothing is known.
func newStatus(d Dir, pid int) Status {
	return Status{
		Name: d.Name(), Pid: pid, Components: []Component{}, Nodes: []Node{}, Hosts: []Host{}, ContainerGroups: []ContainerGroup{},
		Frontends: []Frontend{}, Outbound: []Outbound{}, IgnoredPolicies: []IgnoredPolicy{}, Warnings: []string{}, Problems: []string{},
	}
}

func (s *Status) add(problems, warnings []string) {
	s.Problems, s.Warnings = append(s.Problems, problems...), append(s.Warnings, warnings...)
}

// StatusOf asks the lab how it is. When its process does not answer, the status says so and what is known from its files.
func StatusOf(ctx context.Context, d Dir) Status {
	s, err := ask[Status](ctx, d, "/status")
	if err == nil {
		return s
	}
	s = newStatus(d, d.Process())
	if s.Pid != 0 {
		s.Problems = []string{"the lab process starts, or does not answer: " + err.Error()}
		return s
	}
	s.Problems = []string{fmt.Sprintf("the lab process has died: what is established goes on, but nothing changes any more and what dies stays dead; "+
		"'packetwalk up --name %s' takes the lab up again", d.Name())}
	if _, err := os.Stat(d.Kubeconfig()); err == nil {
		s.Kubeconfig = d.Kubeconfig()
	}
	s.fromPidFiles(d)
	return s
}

// fromPidFiles says which processes of a lab still run when no lab process tells.
func (s *Status) fromPidFiles(d Dir) {
	look := func(name, file string) Component {
		c := Component{Name: name, Pid: supervise.Recorded(file)}
		if c.Pid == 0 {
			s.Problems = append(s.Problems, name+" is down")
		}
		return c
	}
	files, _ := filepath.Glob(d.path("*.pid")) // the pattern is well formed
	for _, file := range files {
		if file != d.lockFile() {
			s.Components = append(s.Components, look(strings.TrimSuffix(filepath.Base(file), ".pid"), file))
		}
	}
	agents, _ := filepath.Glob(d.path("nodes", "*", "agent.pid"))
	for _, file := range agents {
		name := filepath.Base(filepath.Dir(file))
		n := Node{Name: name, Pods: -1, Agent: look(name, file)}
		lookIf := func(name, file string) *Component {
			if _, err := os.Stat(file); err != nil {
				return nil
			}
			there := look(name, file)
			return &there
		}
		n.Machine, n.KubeProxy = lookIf(name+".machine", d.machinePid(name)), lookIf(name+".kube-proxy", d.proxyPid(name))
		n.CalicoFelix = lookIf(name+".calico-felix", d.felixPid(name))
		s.Nodes = append(s.Nodes, n)
	}
}

// steadyRun is how long a process that ended several times in a row has to run until it is no problem: longer than one that cannot start
// takes to end.
const steadyRun = 10 * time.Second

// problems are what the parts of the status say is broken.
func (s *Status) problems() []string {
	found := []string{}
	down := func(c Component) {
		text := c.Name + " is down"
		if c.Pid != 0 {
			if c.Failures < maxConsecutiveExits || time.Since(c.Since) >= steadyRun {
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
		for _, more := range []*Component{n.Machine, n.KubeProxy, n.CalicoFelix} {
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
