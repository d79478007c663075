package lab

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/instances"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
)

// The virtual node has two sides. Azure's: container groups, which this process runs (package instances), behind Azure's HTTP interface on a
// host of the lab's internet. The cluster's: a Deployment whose pod makes container groups of pods, by that interface (package connector).

// What AKS calls the virtual node and its connector, and the version that the node shows: Kubernetes' and the library's, as in AKS.
const (
	virtualNodeName    = "virtual-node-aci-linux"
	virtualNodeVersion = "v" + KubernetesVersion + "-vk-v1.12.0"
	connectorAccount   = "system:serviceaccount:kube-system:aci-connector-linux"
)

// Azure's management endpoint: a host of the lab's internet, which has a container group's interface and nothing else.
const (
	managementHost = "management"
	managementName = "management.azure.com"
	managementPort = "443"
)

// managementAddress is one of those that the internet keeps for services of its own (198.51.100.2 to .9).
var managementAddress = netip.MustParseAddr("198.51.100.2")

//go:embed virtualnode/connector.yaml
var connectorObjects string

// addVirtualNode gives the network what container groups and their interface need.
func addVirtualNode(n *vnet.Network, c *cluster.Cluster) {
	if !c.Spec.VirtualNode.Enabled {
		return
	}
	n.VNets = append(n.VNets, instances.HostsNetwork())
	n.Hosts = append(n.Hosts, vnet.Host{Name: managementHost, Address: managementAddress})
}

// startInstances takes over the container groups that there are and answers for Azure.
func (l *lab) startInstances(ctx context.Context) error {
	if !l.cluster.Spec.VirtualNode.Enabled {
		return nil
	}
	token, err := l.azureToken()
	if err != nil {
		return err
	}
	spec := l.cluster.Spec.Azure
	groups, err := instances.Open(ctx, instances.Config{
		Dir: l.dir.Groups(), NetNSDir: l.dir.GroupNetNSDir(), HostsDir: l.dir.GroupHostNetNSDir(), Network: l.fabric, Runtime: l.runtime,
		NodeAgent: l.bin.Node, LogFile: l.dir.GroupLog, Log: l.log.With("part", "container instances"),
		Subscription: spec.Subscription, ResourceGroup: l.cluster.NodeResourceGroup(), Location: spec.Location,
	})
	if err != nil {
		return fmt.Errorf("container instances: %w", err)
	}
	l.mu.Lock()
	l.groups = groups
	l.mu.Unlock()
	ns, err := l.attachHost(managementHost)
	if err != nil {
		return err
	}
	s := &aci.Server{Service: groups, Subscription: spec.Subscription, ResourceGroup: l.cluster.NodeResourceGroup(), Token: token}
	if err := l.serveManagement(ctx, ns, s.Handler()); err != nil {
		return fmt.Errorf("%s: %w", managementName, err)
	}
	return nil
}

// containerGroups are those that there are, without their secrets.
func (l *lab) containerGroups() []aci.ContainerGroup {
	l.mu.Lock()
	groups := l.groups
	l.mu.Unlock()
	all := []aci.ContainerGroup{}
	if groups == nil {
		return all
	}
	list, _ := groups.List(context.Background()) // it knows no error
	for _, g := range list {
		all = append(all, g.Public())
	}
	return all
}

func (l *lab) containerLogs(ctx context.Context, group, container string, follow bool, w io.Writer) error {
	l.mu.Lock()
	groups := l.groups
	l.mu.Unlock()
	if groups == nil {
		return aci.NotFound(group)
	}
	return groups.Logs(ctx, group, container, aci.LogOptions{Follow: follow}, w)
}

// serveManagement answers at Azure's management endpoint until ctx ends.
func (l *lab) serveManagement(ctx context.Context, ns *kernel.Namespace, h http.Handler) error {
	pair, err := l.ca.Serving(managementName, []netip.Addr{managementAddress}, time.Now())
	if err != nil {
		return err
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		return err
	}
	listener, err := ns.Listen(ctx, "tcp", net.JoinHostPort(managementAddress.String(), managementPort))
	if err != nil {
		return err
	}
	server := serve.New(h, slog.NewLogLogger(l.log.Handler(), slog.LevelDebug)).WithTLS(&tls.Config{
		// Sessions are upgraded connections, which HTTP/2 has not.
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
	})
	go func() {
		if err := server.Serve(ctx, listener); err != nil {
			l.log.Error(managementName, "err", err)
		}
	}()
	return nil
}

// azureToken is the bearer token for Azure's interface, made once in a lab's life. An empty one is an error: it would let everybody in.
func (l *lab) azureToken() (string, error) {
	path := l.dir.path("pki", "azure-token")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(rand.Text())
		err = atomicfile.Write(path, text, 0o600)
	}
	if err == nil && len(text) == 0 {
		err = fmt.Errorf("%s is empty; remove it to have a token made", path)
	}
	return string(text), err
}

// startVirtualNode brings the connector into the API, and returns when its node is Ready.
func (l *lab) startVirtualNode(ctx context.Context) error {
	if !l.cluster.Spec.VirtualNode.Enabled {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("virtual node: %w", err) }
	if err := (&signer{client: l.client, ca: l.ca, log: l.log}).run(ctx); err != nil {
		return fail(err)
	}
	docs, err := l.connectorObjects()
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := applyObjects(ctx, l.client.CoreV1().RESTClient(), docs); err != nil {
		return fail(err)
	}
	if err := l.waitNode(ctx, virtualNodeName); err != nil {
		return fail(fmt.Errorf("%w; 'packetwalk kubectl -n kube-system logs deploy/aci-connector-linux' may say why", err))
	}
	l.done("virtual node Ready")
	return nil
}

func (l *lab) connectorObjects() ([]string, error) {
	token, err := l.azureToken()
	if err != nil {
		return nil, err
	}
	kubeconfig, err := l.ca.Kubeconfig(l.dir.Name(), l.plane.Server(), controlplane.NodeAgentUser, time.Now())
	if err != nil {
		return nil, err
	}
	c := l.cluster
	network, subnet, _ := strings.Cut(c.Spec.VirtualNode.Subnet, "/")
	encode := base64.StdEncoding.EncodeToString
	return objects(connectorObjects, map[string]any{
		"Token": encode([]byte(token)), "CA": encode(l.ca.Certificate), "Kubeconfig": encode(kubeconfig), "Node": virtualNodeName, "Version": virtualNodeVersion,
		"Endpoint": managementName, "Subscription": c.Spec.Azure.Subscription, "ResourceGroup": c.NodeResourceGroup(), "Location": c.Spec.Azure.Location,
		"VNetResourceGroup": c.Spec.Azure.ResourceGroup, "VNet": network, "Subnet": subnet, "DNS": c.Spec.Network.DNSServiceIP, "Domain": clusterDomain,
		"ClusterCIDR": c.PodRange(), "Rules": c.Spec.ServiceProxy.Rules,
	})
}

// virtualNodeProblems say that the virtual node is not Ready; none without one, or while the API server does not answer, which is told elsewhere.
func (l *lab) virtualNodeProblems() []string {
	if !l.ready.Load() || l.groups == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	if is, err := l.isReady(ctx, virtualNodeName); is || err != nil {
		return nil
	}
	return []string{virtualNodeName + " is not Ready: its pods go on, but nothing of them changes any more; " +
		"'packetwalk kubectl -n kube-system describe pod -l app=aci-connector-linux' may say why"}
}

func (l *lab) isReady(ctx context.Context, node string) (bool, error) {
	n, err := l.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}), nil
}

// waitNode waits until a node is Ready.
func (l *lab) waitNode(ctx context.Context, name string) error {
	for {
		if is, err := l.isReady(ctx, name); err == nil && is {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s is not Ready", name)
		case <-time.After(30 * time.Millisecond):
		}
	}
}
