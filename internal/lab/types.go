package lab

import (
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/status"
)

// The types that users of a lab see.
type (
	Dir            = layout.Dir
	Binaries       = layout.Binaries
	Status         = status.Status
	Component      = status.Component
	Node           = status.Node
	Host           = status.Host
	ContainerGroup = status.ContainerGroup
	Frontend       = status.Frontend
	Outbound       = status.Outbound
)

// MaxClusterFile is the most bytes of a cluster.yaml that are read.
const MaxClusterFile = layout.MaxClusterFile
