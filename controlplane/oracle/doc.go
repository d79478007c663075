// Package oracle compares our service proxy with upstream's. It makes random worlds of Services and EndpointSlices that the API server
// would accept, changes them step by step, drives k8s.io/kubernetes' iptables proxier and ours with the same objects, each in a network
// namespace of its own on the real kernel, and compares what iptables-save prints: the chains, and in each the rules in their order.
//
// Where the two may differ, because upstream leaves the result to the order of a Go map, Compare says so rule by rule. What the API server
// cannot deliver, and what upstream itself answers differently from run to run, is not in the worlds; World says what that is.
//
// It is a module of its own, so that neither the root module nor the control plane's build depends on it. It owns nothing at run time.
package oracle
