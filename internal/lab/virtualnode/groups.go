package virtualnode

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/az"
	"packetwalk.dev/internal/lab/imageservice"
	"packetwalk.dev/internal/lab/instances"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/nodes"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
)

// Groups are the container groups, and Azure's interface to them, where the cluster has a virtual node.
type Groups struct {
	*lifecycle.Env
	Azure             *network.Network
	Access            *apiserver.Access
	Library           *imageservice.Service
	Shared            *nodes.SharedLayer
	*instances.Groups // nil without a virtual node

	token string
	local atomic.Pointer[string] // where Azure's interface is on this machine
}

// Start takes over the container groups that there are and answers for Azure.
func (l *Groups) Start(ctx context.Context) error {
	token, err := l.Dir.AzureToken()
	if err != nil {
		return err
	}
	l.token = token
	manager := &arm.Server{Token: token, Network: l.Azure.Current, Update: l.Azure.Update, Settings: l.settings, Other: func(kind string) ([]any, bool, error) {
		lab := az.Lab{Network: arm.Visible(l.Azure.Current()), Cluster: l.Cluster(), KubernetesVersion: plan.KubernetesVersion}
		return az.Other(lab, kind)
	}}
	if !l.Cluster().Spec.VirtualNode.Enabled {
		return l.serveManagement(ctx, manager)
	}
	spec, group := l.Cluster().Spec.Azure, l.Cluster().NodeResourceGroup()
	l.Groups, err = instances.Open(ctx, instances.Config{
		Dir: l.Dir.Groups(), State: l.Dir.GroupState,
		NetNSDir: l.Dir.GroupNetNSDir(), HostsDir: l.Dir.GroupHostNetNSDir(), Network: l.Azure, Machines: groupMachines{l},
		NodeAgent: l.Binaries.Node, LogFile: l.Dir.GroupLog, Log: l.Log.With("part", "container instances"),
		Subscription: spec.Subscription, ResourceGroup: group, Location: spec.Location,
	})
	if err != nil {
		return err
	}
	s := &aci.Server{Service: l.Groups, Subscription: spec.Subscription, ResourceGroup: group, Token: token}
	return l.serveManagement(ctx, management(s.Handler(), manager))
}

// settings returns how Azure Resource Manager answers, by the present cluster.yaml.
func (l *Groups) settings() arm.Settings {
	m := l.Cluster().Spec.Azure.ResourceManager
	return arm.Settings{Operation: time.Duration(m.OperationSeconds) * time.Second,
		Reads: arm.Limit(m.ReadLimit), Writes: arm.Limit(m.WriteLimit), Deletes: arm.Limit(m.DeleteLimit)}
}

// management returns all of Azure's interface: container groups and their sessions, and the other resources.
func management(instances, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.ToLower(r.URL.Path)
		if strings.HasPrefix(path, "/sessions/") || strings.Contains(path, "/providers/"+strings.ToLower(aci.Type)) {
			instances.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// Report adds where Azure's interface is, and the container groups.
func (l *Groups) Report(s *status.Status) {
	if at := l.local.Load(); at != nil {
		s.Azure = &status.Azure{Endpoint: *at, Tenant: arm.Tenant, Subscription: l.Cluster().Spec.Azure.Subscription, Token: l.token,
			CA: l.Dir.CA()}
	}
	if l.Groups == nil {
		return
	}
	for _, g := range l.Status() {
		s.ContainerGroups = append(s.ContainerGroups, status.ContainerGroup{
			Name: g.Name, Address: g.Address, State: g.State, Error: g.Error, Ready: g.Ready, Containers: g.Containers, ProxyPid: g.Proxy,
		})
	}
}

// Namespaces returns the network namespaces of the container groups.
func (l *Groups) Namespaces() []*netns.Namespace {
	if l.Groups == nil {
		return nil
	}
	return l.Groups.Namespaces()
}

// Public returns the groups without their secrets.
func (l *Groups) Public(ctx context.Context) []aci.ContainerGroup {
	all := []aci.ContainerGroup{}
	if l.Groups == nil {
		return all
	}
	list, _ := l.List(ctx) // it knows no error
	for _, g := range list {
		all = append(all, g.Public())
	}
	return all
}

// CopyLog copies the log of a group's container to w.
func (l *Groups) CopyLog(ctx context.Context, group, container string, follow bool, w io.Writer) error {
	if l.Groups == nil {
		return aci.NotFound(group)
	}
	return l.Logs(ctx, group, container, logs.Options{Follow: follow}, w)
}

// serveManagement answers at Azure's management endpoint until ctx ends.
func (l *Groups) serveManagement(ctx context.Context, h http.Handler) error {
	// A lab that an older packetwalk made without a virtual node does not have the host.
	if err := l.Azure.Update(func(n *vnet.Network) error {
		if _, ok := n.Host(plan.ManagementHost); !ok {
			n.Hosts = append(n.Hosts, vnet.Host{Name: plan.ManagementHost, Address: plan.ManagementAddress})
		}
		return nil
	}); err != nil {
		return err
	}
	ns, err := l.Azure.MakeHost(plan.ManagementHost)
	if err != nil {
		return err
	}
	certificate, err := l.Access.CA.Serving(plan.ManagementName, time.Now(), plan.ManagementAddress, localhost)
	if err != nil {
		return err
	}
	answer := func(ctx context.Context, listener net.Listener) error {
		return serve.New(h, slog.NewLogLogger(l.Log.Handler(), slog.LevelDebug)).WithTLS(&tls.Config{
			// Sessions are upgraded connections, which HTTP/2 has not.
			Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		}).Serve(ctx, listener)
	}
	if err := l.Serve(ctx, plan.ManagementName, func(ctx context.Context) (net.Listener, error) {
		return ns.Listen(ctx, "tcp", net.JoinHostPort(plan.ManagementAddress.String(), "443"))
	}, answer); err != nil {
		return err
	}
	return l.Serve(ctx, plan.ManagementName+" on this machine", func(context.Context) (net.Listener, error) {
		listener, err := l.listenLocal()
		if err == nil {
			l.local.Store(new("https://" + listener.Addr().String()))
		}
		return listener, err
	}, answer)
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// listenLocal listens on 127.0.0.1 for users of this machine, at the port of an earlier lab process if it is free, and writes the address.
func (l *Groups) listenLocal() (net.Listener, error) {
	at := net.JoinHostPort(localhost.String(), "0")
	if before, err := os.ReadFile(l.Dir.AzureAddress()); err == nil {
		if a, err := netip.ParseAddrPort(strings.TrimSpace(string(before))); err == nil && a.Addr() == localhost {
			at = a.String()
		}
	}
	listener, err := net.Listen("tcp", at)
	if err != nil {
		listener, err = net.Listen("tcp", net.JoinHostPort(localhost.String(), "0"))
	}
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(l.Dir.AzureAddress(), []byte(listener.Addr().String()+"\n"), 0o600); err != nil {
		listener.Close()
		return nil, err
	}
	return listener, nil
}
