package lab

import (
	"context"
	"os"

	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
)

// calico are Calico's resources in the API, where the cluster has Calico.
type calico struct {
	*lifecycle.Env
	api *apiserver.Server
}

// Start makes the API serve Calico's resources and gives felix its rights and settings. Settings that exist already stay as they are.
func (l *calico) Start(ctx context.Context) error {
	version := l.Cluster().CalicoVersion()
	if version == "" {
		return nil
	}
	if _, err := l.Binaries.FelixProgram(l.Cluster()); err != nil {
		return err
	}
	definitions, err := os.ReadFile(l.Binaries.CalicoFile("crds", version) + ".yaml")
	if err != nil {
		return err
	}
	rights, settings, err := manifests.CalicoSettings(l.Cluster())
	if err != nil {
		return err
	}
	docs := append(manifests.Documents(string(definitions)), rights...)
	if err := manifests.Apply(ctx, l.api.REST(), docs); err != nil {
		return err
	}
	return manifests.Ensure(ctx, l.api.REST(), settings)
}
