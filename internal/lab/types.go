package lab

import (
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
)

// The types that users of a lab see.
type (
	Dir            = layout.Dir
	Binaries       = layout.Binaries
	Step           = lifecycle.Step
	Status         = status.Status
	Component      = status.Component
	Node           = status.Node
	Host           = status.Host
	ContainerGroup = status.ContainerGroup
	Frontend       = status.Frontend
	Outbound       = status.Outbound
)

const (
	// DefaultTimeout is how long a lab may take to start or to change.
	DefaultTimeout = lifecycle.DefaultTimeout
	// MaxClusterFile is the most bytes of a cluster.yaml that are read.
	MaxClusterFile = layout.MaxClusterFile
)
