// Package cgroup is the machine's control groups: which hierarchies there are, of cgroup v1 and v2, and groups of ours in them.
//
// What runs in containers and in real nodes uses it, hundreds of times; it must not import anything large.
package cgroup
