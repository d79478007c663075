// Package fib owns what decides where a packet goes inside one network namespace, as data: links and bridges, addresses, routes, policy
// rules, neighbours and forwarding databases; and looks routes up as the kernel does, with the reason. From iproute2's JSON syntax/iproute
// reads them.
package fib
