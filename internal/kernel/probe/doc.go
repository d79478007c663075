// Package probe sends packets in a network namespace and sees them: the answers, the frames on links, and the kernel's traces of rules.
package probe
