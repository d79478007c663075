// Package plugin tests kubectl packetwalk as users call it, on a lab: that its answers agree with the kernel, what it says
// when something is amiss, and that nothing is left on the cluster, whatever ended it.
package plugin
