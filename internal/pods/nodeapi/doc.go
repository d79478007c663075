// Package nodeapi is the HTTP interface that the API server finds on every node, whatever runs its pods: logs, exec, attach, port-forward,
// pods and stats, for clients with a certificate. The streams are virtual-kubelet's handlers; who may ask, and how a request for a log is
// read, is here.
package nodeapi
