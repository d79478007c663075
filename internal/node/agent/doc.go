// Package agent is one node's agent. It wires the service proxy, the ip-masq-agent and the node's own rules, and reports their health and
// metrics. It leaves its rules in place when it stops, so that established and new connections go on while it is restarted.
package agent
