// Package simulated runs one simulated node, for labs with more nodes and pods than a machine can run containers for, as kwok does beside
// kind. Other than kwok's, its pods have a data plane: each is a network namespace that the node's CNI plugin attaches, with a listener on
// each container port that the pod declares. There are no images, no volumes and no limits.
//
// What a pod is not given is said in an event ([Unsupported]). The node is a process in its own network namespace.
package simulated
