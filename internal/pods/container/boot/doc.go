// Package boot is what packetwalk-app does: a container's first process, from fresh namespaces to the application; the application or the
// reaper that it is from then on; and commands on hosts that are no containers.
//
// It owns the container's file system, its log and its state file. It runs in hundreds of processes at once and must not import anything
// large: nothing of Kubernetes, no net/http.
package boot
