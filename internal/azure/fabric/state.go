package fabric

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/atomicfile"
)

// stateFile is the state file: JSON, for the fabric that takes over.
type stateFile struct {
	Network vnet.Network
	Up      []vnet.ProbeTarget
}

// save replaces the state file. Held: mu.
func (f *Fabric) save() error {
	if f.cfg.StateFile == "" {
		return nil
	}
	s := stateFile{Network: f.network}
	for target, up := range f.health {
		if up {
			s.Up = append(s.Up, target)
		}
	}
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("save fabric state: %w", err)
	}
	err = os.MkdirAll(filepath.Dir(f.cfg.StateFile), 0o700)
	if err == nil {
		err = atomicfile.Write(f.cfg.StateFile, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("save fabric state: %w", err)
	}
	return nil
}

// ReadNetwork gives the network that a state file holds: that of a fabric that runs, or did until its process was killed. It is empty where
// there is no file.
func ReadNetwork(path string) (vnet.Network, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return vnet.Network{}, nil
	}
	var s stateFile
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return vnet.Network{}, fmt.Errorf("read fabric state: %w", err)
	}
	return s.Network, nil
}

// restore takes network and health from the state file. One that cannot be used is left aside: the configured network is the
// better truth then. Held: mu.
func (f *Fabric) restore() {
	if f.cfg.StateFile == "" {
		return
	}
	data, err := os.ReadFile(f.cfg.StateFile)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var s stateFile
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil {
		err = s.Network.Validate()
	}
	if err != nil {
		f.cfg.Log.Warn("state file is not usable, starting from the configuration", "file", f.cfg.StateFile, "err", err)
		return
	}
	f.network = s.Network
	for _, target := range s.Up {
		f.health[target] = true
	}
}

// forget removes the state file.
func (f *Fabric) forget() error {
	if f.cfg.StateFile == "" {
		return nil
	}
	if err := os.Remove(f.cfg.StateFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove fabric state: %w", err)
	}
	return nil
}
