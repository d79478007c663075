package lab

import (
	"fmt"
	"os"
	"path/filepath"
)

// metricsServer is upstream's metrics-server, which need not be there.
func (b Binaries) metricsServer() string { return filepath.Join(b.RealNode, "metrics-server") }

// FindBinaries finds the programs beside the one that runs.
func FindBinaries() (Binaries, error) {
	self, err := os.Executable()
	if err != nil {
		return Binaries{}, err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return Binaries{}, err
	}
	dir := filepath.Dir(self)
	b := Binaries{
		Packetwalk:   self,
		ControlPlane: filepath.Join(dir, "packetwalk-controlplane"),
		Node:         filepath.Join(dir, "packetwalk-node"),
		CNI:          filepath.Join(dir, "packetwalk-cni"),
		PortMap:      filepath.Join(dir, "portmap"),
		App:          filepath.Join(dir, "packetwalk-app"),
		Addon:        filepath.Join(dir, "packetwalk-addon"),
		DNS:          filepath.Join(dir, "packetwalk-dns"),
		Simulated:    filepath.Join(dir, "packetwalk-simulated"),
		RealNode:     filepath.Join(dir, "realnode"),
		Calico:       filepath.Join(dir, "calico"),
		Base:         filepath.Join(dir, "base"),
	}
	for _, path := range []string{b.ControlPlane, b.Node, b.CNI, b.PortMap, b.App, b.Addon, b.DNS, b.Simulated} {
		if _, err := os.Stat(path); err != nil {
			return b, fmt.Errorf("%s is missing beside %s; 'make build controlplane' makes it", filepath.Base(path), self)
		}
	}
	return b, nil
}
