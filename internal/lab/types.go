package lab

import "packetwalk.dev/internal/lab/status"

// The types of a lab's status, for those who ask for it.
type (
	Status         = status.Status
	Component      = status.Component
	Node           = status.Node
	Host           = status.Host
	ContainerGroup = status.ContainerGroup
	Frontend       = status.Frontend
	Outbound       = status.Outbound
)
