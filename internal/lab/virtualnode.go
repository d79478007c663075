package lab

import (
	"packetwalk.dev/internal/addons/connector"
	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/imageservice"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/nodes"
	"packetwalk.dev/internal/lab/signer"
	"packetwalk.dev/internal/lab/status"

	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/lab/az"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/instances"
	"packetwalk.dev/internal/lab/plan"
)

// The virtual node has two sides. Azure's: container groups, which this process runs (package instances), behind Azure's HTTP interface on
// a host of the lab's internet. The cluster's: a Deployment whose pod makes container groups of pods, by that interface (package
// connector).

// groups are the container groups, and Azure's interface to them, where the cluster has a virtual node.
type groups struct {
	*lifecycle.Env
	azure             *network.Network
	access            *apiserver.Access
	library           *imageservice.Service
	shared            *nodes.SharedLayer
	*instances.Groups // nil without a virtual node
}

// Start takes over the container groups that there are and answers for Azure.
func (l *groups) Start(ctx context.Context) error {
	token, err := azureToken(l.Dir)
	if err != nil {
		return err
	}
	manager := &az.Manager{Token: token, Lab: func() az.Lab {
		return az.Lab{Network: l.azure.Current(), Cluster: l.Cluster(), KubernetesVersion: plan.KubernetesVersion}
	}}
	if !l.Cluster().Spec.VirtualNode.Enabled {
		return l.serveManagement(ctx, manager)
	}
	spec, group := l.Cluster().Spec.Azure, l.Cluster().NodeResourceGroup()
	l.Groups, err = instances.Open(ctx, instances.Config{
		Dir: l.Dir.Groups(), State: l.Dir.GroupState,
		NetNSDir: l.Dir.GroupNetNSDir(), HostsDir: l.Dir.GroupHostNetNSDir(), Network: l.azure, Machines: groupMachines{l},
		NodeAgent: l.Binaries.Node, LogFile: l.Dir.GroupLog, Log: l.Log.With("part", "container instances"),
		Subscription: spec.Subscription, ResourceGroup: group, Location: spec.Location,
	})
	if err != nil {
		return err
	}
	s := &aci.Server{Service: l.Groups, Subscription: spec.Subscription, ResourceGroup: group, Token: token}
	return l.serveManagement(ctx, management(s.Handler(), manager))
}

// management is all of Azure's interface: container groups and their sessions, and the other resources.
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

func (l *groups) Report(s *status.Status) {
	if l.Groups == nil {
		return
	}
	for _, g := range l.Status() {
		s.ContainerGroups = append(s.ContainerGroups, status.ContainerGroup{
			Name: g.Name, Address: g.Address, State: g.State, Error: g.Error, Ready: g.Ready, Containers: g.Containers, ProxyPid: g.Proxy,
		})
	}
}

// public are the groups that there are, without their secrets.
func (l *groups) public(ctx context.Context) []aci.ContainerGroup {
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

func (l *groups) logs(ctx context.Context, group, container string, follow bool, w io.Writer) error {
	if l.Groups == nil {
		return aci.NotFound(group)
	}
	return l.Logs(ctx, group, container, logs.Options{Follow: follow}, w)
}

// serveManagement answers at Azure's management endpoint until ctx ends.
func (l *groups) serveManagement(ctx context.Context, h http.Handler) error {
	// A lab that an older packetwalk made without a virtual node does not have the host.
	if err := l.azure.Update(func(n *vnet.Network) error {
		if _, ok := n.Host(plan.ManagementHost); !ok {
			n.Hosts = append(n.Hosts, vnet.Host{Name: plan.ManagementHost, Address: plan.ManagementAddress})
		}
		return nil
	}); err != nil {
		return err
	}
	ns, err := l.azure.MakeHost(plan.ManagementHost)
	if err != nil {
		return err
	}
	certificate, err := l.access.CA.Serving(plan.ManagementName, plan.ManagementAddress, time.Now())
	if err != nil {
		return err
	}
	return l.Serve(ctx, plan.ManagementName, func(ctx context.Context) (net.Listener, error) {
		return ns.Listen(ctx, "tcp", net.JoinHostPort(plan.ManagementAddress.String(), "443"))
	}, func(ctx context.Context, listener net.Listener) error {
		return serve.New(h, slog.NewLogLogger(l.Log.Handler(), slog.LevelDebug)).WithTLS(&tls.Config{
			// Sessions are upgraded connections, which HTTP/2 has not.
			Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		}).Serve(ctx, listener)
	})
}

// azureToken is the bearer token for Azure's interface.
func azureToken(d layout.Dir) (string, error) { return layout.Secret(d.Path("pki", "azure-token")) }

// virtualNode is the connector in the API, which makes container groups of pods.
type virtualNode struct {
	*lifecycle.Env
	access *apiserver.Access
	api    *apiserver.Server
}

// Start brings the connector into the API, and returns when its node is Ready.
func (l *virtualNode) Start(ctx context.Context) error {
	if !l.Cluster().Spec.VirtualNode.Enabled {
		return nil
	}
	s := signer.Signer{Name: connector.SignerName, Client: l.api.Client, CA: l.access.CA, Log: l.Log, Fault: l.Fault}
	if err := s.Run(ctx); err != nil {
		return err
	}
	docs, err := l.connectorObjects()
	if err != nil {
		return err
	}
	if err := manifests.Apply(ctx, l.api.REST(), docs); err != nil {
		return err
	}
	for {
		if is, err := l.isReady(ctx); err == nil && is {
			l.Done("virtual node Ready")
			return nil
		}
		if !pause.For(ctx, 30*time.Millisecond) {
			return fmt.Errorf("node %s is not Ready; 'packetwalk kubectl -n kube-system logs deploy/aci-connector-linux' may say why",
				plan.VirtualNode)
		}
	}
}

func (l *virtualNode) connectorObjects() ([]string, error) {
	token, err := azureToken(l.Dir)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := l.access.CA.Kubeconfig(l.Dir.Name(), l.access.Config.Server(), controlplane.NodeAgentUser, time.Now())
	if err != nil {
		return nil, err
	}
	return manifests.Connector(l.Cluster(), manifests.Credentials{Token: token, CA: l.access.CA.Certificate, ProxyIdentity: kubeconfig})
}

// Report says that the virtual node is not Ready; nothing while the API server does not answer, which is told elsewhere.
func (l *virtualNode) Report(s *status.Status) {
	if !l.Cluster().Spec.VirtualNode.Enabled {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), nodes.AskTimeout)
	defer cancel()
	if is, err := l.isReady(ctx); !is && err == nil {
		s.Problems = append(s.Problems, plan.VirtualNode+" is not Ready: its pods go on, but nothing of them changes any more; "+
			"'packetwalk kubectl -n kube-system describe pod -l app=aci-connector-linux' may say why")
	}
}

func (l *virtualNode) isReady(ctx context.Context) (bool, error) {
	n, err := l.api.Client.CoreV1().Nodes().Get(ctx, plan.VirtualNode, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}), nil
}
