package az

import (
	"io"

	"packetwalk.dev/internal/azure/arm"
)

const effectiveRoutesWords = "network nic show-effective-route-table"

// effectiveRoutes returns the routes that the packets of a NIC meet.
func effectiveRoutes(l Lab, o options, _ io.Writer) (any, error) {
	return effective(l, o, arm.EffectiveRoutes)
}
