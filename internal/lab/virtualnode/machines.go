package virtualnode

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/netip"
	"os"
	"time"

	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/imageservice"
	"packetwalk.dev/internal/lab/instances"
	"packetwalk.dev/internal/lab/nodes"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/realnode"
)

// groupMachines are what container groups run on: machines as nodes are, whose kubelet knows no API server.
type groupMachines struct{ *Groups }

// Prepare implements instances.Machines.
func (l groupMachines) Prepare(ctx context.Context, m instances.Machine) (supervise.Process, error) {
	c := supervise.Process{
		Name: m.Group + ".machine", Path: l.Binaries.App, Args: realnode.Args(m.State), LogFile: l.Dir.GroupLog(m.Group + ".machine"),
		PidFile: l.Dir.GroupPid(m.Group),
	}
	if err := l.Shared.Prepare(l.Env, l.Library); err != nil {
		return c, err
	}
	if supervise.Recorded(c.PidFile) != 0 {
		return c, nil
	}
	cgroup := l.Dir.GroupCgroup(m.Group)
	if err := nodes.EndMachine(ctx, m.Host, cgroup, c); err != nil {
		return c, err
	}
	serving, err := l.Access.CA.KubeletPair(m.Group, netip.MustParseAddrPort(instances.KubeletAddress).Addr(), time.Now())
	if err != nil {
		return c, err
	}
	distribution, err := l.BuiltIn.Root(ctx)
	if err != nil {
		return c, err
	}
	registries, err := imageservice.RegistryHosts(m.Dir)
	if err != nil {
		return c, err
	}
	images, err := l.Dir.Images()
	if err != nil {
		return c, err
	}
	return c, realnode.Config{
		Name: m.Group, State: m.State, Images: images, Base: l.Dir.ProgramsLayer(), Distribution: distribution,
		Kubernetes: map[string][]byte{
			realnode.ClientCA: l.Access.CA.Certificate, realnode.ServingCert: serving.Certificate, realnode.ServingKey: serving.Key,
		},
		Cgroup: cgroup, Bounds: l.NodeBounds, ResolvConf: []byte{}, Registries: registries,
		Kubelet: realnode.KubeletConfig{Name: m.Group, PodProcesses: l.PodProcesses, Standalone: true},
	}.Prepare()
}

// ServeImages implements instances.Machines.
func (l groupMachines) ServeImages(ctx context.Context, m instances.Machine) error {
	return l.Library.ServeRegistry(ctx, l.Access.CA, m.Host, m.Dir)
}

// Remove implements instances.Machines.
func (l groupMachines) Remove(group string) error {
	return errors.Join(cgroup.Remove(l.Dir.GroupCgroup(group)), supervise.RemoveLog(l.Dir.GroupLog(group+".machine")))
}

// kubeletUser is who asks the kubelets of groups' machines.
var kubeletUser = controlplane.User{Common: "packetwalk"}

// KubeletTLS implements instances.Machines.
func (l groupMachines) KubeletTLS() (*tls.Config, error) {
	pair, err := l.Access.CA.Client(kubeletUser, time.Now())
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(l.Access.CA.Certificate) {
		return nil, os.ErrInvalid
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

// HasImage implements instances.Machines.
func (l groupMachines) HasImage(ctx context.Context, ref string) error {
	_, err := l.Library.Manifest(ctx, ref)
	return err
}
