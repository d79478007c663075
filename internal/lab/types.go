package lab

import (
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
)

type (
	// Dir is the directory of one lab.
	Dir = layout.Dir
	// Step is one report of a lab that comes up.
	Step = lifecycle.Step
	// Status is what runs of a lab.
	Status = status.Status
	// Component is one process of a lab and its state.
	Component = status.Component
	// Node is the state of one node.
	Node = status.Node
	// Host is the state of one machine outside the cluster.
	Host = status.Host
	// ContainerGroup is the state of one container group.
	ContainerGroup = status.ContainerGroup
	// Frontend is one address and port of the load balancer.
	Frontend = status.Frontend
	// Outbound is how far the outbound ports of a node are used.
	Outbound = status.Outbound
)

const (
	// DefaultTimeout is how long a lab may take to start or to change.
	DefaultTimeout = lifecycle.DefaultTimeout
	// MaxClusterFile is the most bytes of a cluster.yaml that are read.
	MaxClusterFile = layout.MaxClusterFile
)
