// Package virtualnode runs a lab's virtual node, which has two sides. Azure's: container groups, which the lab process runs (package
// instances), behind Azure's HTTP interface on a host of the lab's internet. The cluster's: a Deployment whose pod makes container groups of
// pods, by that interface (package connector).
package virtualnode

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/addons/connector"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/nodes"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/signer"
	"packetwalk.dev/internal/lab/status"
)

// Connector is the connector in the API, which makes container groups of pods.
type Connector struct {
	*lifecycle.Env
	Access *apiserver.Access
	API    *apiserver.Server
}

// Start brings the connector into the API, and returns when its node is Ready.
func (l *Connector) Start(ctx context.Context) error {
	if !l.Cluster().Spec.VirtualNode.Enabled {
		return nil
	}
	s := signer.Signer{Name: connector.SignerName, Client: l.API.Client, CA: l.Access.CA, Log: l.Log, Fault: l.Fault}
	if err := s.Run(ctx); err != nil {
		return err
	}
	docs, err := l.connectorObjects()
	if err != nil {
		return err
	}
	if err := manifests.Apply(ctx, l.API.REST(), docs); err != nil {
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

func (l *Connector) connectorObjects() ([]string, error) {
	token, err := l.Dir.AzureToken()
	if err != nil {
		return nil, err
	}
	kubeconfig, err := l.Access.CA.Kubeconfig(l.Dir.Name(), l.Access.Config.Server(), controlplane.NodeAgentUser, time.Now())
	if err != nil {
		return nil, err
	}
	return manifests.Connector(l.Cluster(), manifests.Credentials{Token: token, CA: l.Access.CA.Certificate, ProxyIdentity: kubeconfig})
}

// Report says that the virtual node is not Ready; nothing while the API server does not answer, which is told elsewhere.
func (l *Connector) Report(s *status.Status) {
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

func (l *Connector) isReady(ctx context.Context) (bool, error) {
	n, err := l.API.Client.CoreV1().Nodes().Get(ctx, plan.VirtualNode, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}), nil
}
