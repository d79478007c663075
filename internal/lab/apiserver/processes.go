package apiserver

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/status"
)

// Processes are upstream's processes that a component keeps running.
type Processes struct {
	*lifecycle.Env
	Access *Access
	all    []*supervise.Supervisor
}

func (p *Processes) launch(ctx context.Context, all, some []controlplane.Component) error {
	return p.Access.CA.Launch(ctx, all, some, p.Access.Namespace.Dial, func(c controlplane.Component) error {
		s, err := p.Run(p.Access.Namespace, c.Process)
		if err == nil {
			p.all = append(p.all, s)
		}
		return err
	})
}

// Report adds the state of each process.
func (p *Processes) Report(s *status.Status) {
	for _, one := range p.all {
		s.Components = append(s.Components, one.State())
	}
}

// Stop leaves the processes running.
func (p *Processes) Stop() {
	for _, one := range p.all {
		one.Detach()
	}
}

// serving is how many of the control plane's components, the first ones, are what serves requests: etcd and the API server.
const serving = 2

// Server starts the API server, and has the client of it that the lab's own components use. It counts as up when it serves requests, a second
// before it reports itself ready.
type Server struct {
	Processes
	Client kubernetes.Interface
}

// REST returns the client for objects that are sent as text.
func (a *Server) REST() rest.Interface { return a.Client.CoreV1().RESTClient() }

// Start starts etcd and the API server, and returns when it serves.
func (a *Server) Start(ctx context.Context) error {
	all := a.Access.Config.Components()
	if err := a.launch(ctx, all, all[:serving]); err != nil {
		return err
	}
	if err := a.Access.CA.WaitServing(ctx, all[serving-1], a.Access.Namespace.Dial); err != nil {
		return err
	}
	a.Done("API server answers")
	client, err := a.Access.clientAs(controlplane.Admin)
	if err != nil {
		return err
	}
	a.Client = client
	return manifests.Retry(ctx, func() error { return controlplane.ApplyBootstrap(ctx, client.RbacV1()) })
}

// WaitDefaultAccount waits until pods can be made in namespace default: the service account admission refuses them before the
// controller manager has made the account.
func (a *Server) WaitDefaultAccount(ctx context.Context) error {
	if err := manifests.Served(ctx, a.REST(), "/api/v1/namespaces/default/serviceaccounts/default"); err != nil {
		return fmt.Errorf("wait for the service account default/default: %w", err)
	}
	return nil
}

// ControlPlane is the rest of the control plane. It is up when all of it is ready.
type ControlPlane struct{ Processes }

// Start starts the controllers and the scheduler, and returns when all are ready.
func (p *ControlPlane) Start(ctx context.Context) error {
	all := p.Access.Config.Components()
	if err := p.launch(ctx, all, all[serving:]); err != nil {
		return err
	}
	if err := p.Access.CA.WaitReady(ctx, p.Access.Namespace.Dial, all...); err != nil {
		return err
	}
	p.Done("control plane ready")
	return nil
}
