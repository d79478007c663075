// Package fabric runs Azure's host network: it makes the fabric's and the internet's namespaces agree with vnet's plan, wires
// machines and internet hosts to them, probes back ends, and answers as 168.63.129.16.
//
// The kernel carries the packets: when the process that runs the fabric is killed, traffic goes on, and a new one started over the same
// namespaces takes over without cutting it.
package fabric
