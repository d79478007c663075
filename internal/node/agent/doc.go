// Package agent is one node's loop: it watches the Kubernetes API through kube, makes the desired state with service and proxy,
// applies it to the kernel it runs in, repairs what others delete, and reports health and metrics. Beside the service proxy it keeps, where
// asked to, the ip-masq-agent's rules. It leaves its rules in place when it stops, so that established and new connections go on while it
// is restarted.
package agent
