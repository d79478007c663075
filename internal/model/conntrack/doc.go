// Package conntrack owns the kernel's connection tracking as data: the flows of a namespace, read from conntrack(8)'s text; which flow a
// packet belongs to and in what state that makes it; and what a translation rule does to a flow's tuples, with the kernel's choice of
// ports.
package conntrack
