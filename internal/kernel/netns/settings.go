package netns

import "packetwalk.dev/internal/base/sysctl"

// ResetSettings gives a new namespace the kernel's own settings, so that a lab is the same on every machine.
func (n *Namespace) ResetSettings() error { return n.Do(sysctl.Reset) }
