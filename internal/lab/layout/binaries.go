package layout

import (
	"fmt"
	"path/filepath"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/pods/realnode"
)

// MetricsServer returns the path of upstream's metrics-server, which may be missing.
func (b Binaries) MetricsServer() string { return filepath.Join(b.RealNode, "metrics-server") }

// Binaries are the programs that a lab is made of.
type Binaries struct {
	Packetwalk   string // the lab process: this program
	ControlPlane string // the multi-call binary
	Node         string // packetwalk-node
	CNI          string // packetwalk-cni
	PortMap      string // upstream's CNI plugin for host ports, in CNI's folder
	App          string // packetwalk-app
	Addon        string // packetwalk-addon
	DNS          string // packetwalk-dns
	Simulated    string // packetwalk-simulated
	RealNode     string // the directory of containerd, kubelet and what they start
	Calico       string // the directory of felix and the definitions of Calico's resources, by release
	Base         string // the directory of what nodes and images have of Debian
}

// RealNodePrograms finds the programs of real nodes, where links lead, and their CNI plugins; it says what is missing.
func (b Binaries) RealNodePrograms() (programs map[string]string, plugins []string, err error) {
	find := func(name string) string {
		path, e := filepath.EvalSymlinks(filepath.Join(b.RealNode, name))
		if e != nil && err == nil {
			err = fmt.Errorf("nodes need %s, which is not in %s; 'make controlplane' makes it", name, b.RealNode)
		}
		return path
	}
	programs, plugins = map[string]string{filepath.Base(realnode.NodeAgent): b.Node}, []string{b.CNI, b.PortMap}
	for _, name := range realnode.Programs {
		programs[name] = find(name)
	}
	for _, name := range realnode.Plugins {
		plugins = append(plugins, find(name))
	}
	return programs, plugins, err
}

// CalicoFile returns the path of a file of Calico's that the control plane's builder made.
func (b Binaries) CalicoFile(what string, version cluster.CalicoVersion) string {
	return filepath.Join(b.Calico, "calico-"+what+"-"+string(version))
}

// FelixProgram returns calico-felix, where links lead, "" for a cluster without Calico.
func (b Binaries) FelixProgram(c *cluster.Cluster) (string, error) {
	if c.CalicoVersion() == "" {
		return "", nil
	}
	link := b.CalicoFile("felix", c.CalicoVersion())
	path, err := filepath.EvalSymlinks(link)
	if err != nil {
		target := "calico"
		if c.CalicoVersion() != cluster.Calico331 {
			target += "-" + string(c.CalicoVersion())
		}
		return "", fmt.Errorf("policy calico needs %s, which does not exist; run 'make %s'", link, target)
	}
	return path, nil
}
