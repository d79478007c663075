package redact

import (
	"encoding/json"
	"sync"
)

// Originals are what stood where a redaction put something else: the private key to a redacted capture. It is complete when all of that has
// been read, and safe for concurrent use.
type Originals struct {
	mu    sync.Mutex
	names map[string]string // by what replaced them
	of    *addressMap
}

// note keeps what replaced a name, and returns it.
func (o *Originals) note(name, replaced string) string {
	if name != replaced {
		o.mu.Lock()
		o.names[replaced] = name
		o.mu.Unlock()
	}
	return replaced
}

// forget drops all names: links are called otherwise while it is not known yet which there are.
func (o *Originals) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names = map[string]string{}
}

// MarshalJSON writes {"addresses": {…}, "macs": {…}, "names": {…}}, each by what stands in the redacted capture. An
// address that stands for itself is in it, too: without that, it could be one of another capture.
func (o *Originals) MarshalJSON() ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	addresses, macs := map[string]string{}, map[string]string{}
	for real, replaced := range o.of.done {
		addresses[replaced.String()] = real.String()
	}
	for real, replaced := range o.of.macs {
		if real != replaced {
			macs[replaced.String()] = real.String()
		}
	}
	return json.Marshal(map[string]map[string]string{"addresses": addresses, "macs": macs, "names": o.names})
}
