// Package service turns Services and EndpointSlices into service ports: plain values that say where a service answers, what its policies
// are and which endpoints each policy chooses on this node. It is a pure function of its inputs, and the order, the splitting and the
// repetition of objects make no difference to what it returns.
package service
