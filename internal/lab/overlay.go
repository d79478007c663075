package lab

import (
	"context"

	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
)

// nodeNetworkConfigs is the kind NodeNetworkConfig in the API, with Azure CNI Overlay. Nodes get their objects as they join.
type nodeNetworkConfigs struct {
	*lifecycle.Env
	api *apiserver.Server
}

// Start makes the API serve the kind.
func (l *nodeNetworkConfigs) Start(ctx context.Context) error {
	if !l.Cluster().Spec.Network.IsOverlay() {
		return nil
	}
	definitions, err := manifests.NodeNetworkConfigs()
	if err != nil {
		return err
	}
	return manifests.Apply(ctx, l.api.REST(), definitions)
}
