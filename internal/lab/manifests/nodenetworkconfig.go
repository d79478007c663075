package manifests

import (
	"context"
	"encoding/json"
	"net/netip"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/lab/cluster"
)

// NodeNetworkConfigs returns the definition of the kind.
func NodeNetworkConfigs() ([]string, error) { return objects("nodenetworkconfig.yaml", nil) }

// NodeNetworkConfig returns what Azure says in a cluster with Azure CNI Overlay of a node's part of the pods' range, as AKS's clusters show
// it. The node owns the object, and Kubernetes deletes it with the node.
func NodeNetworkConfig(c *cluster.Cluster, n cluster.Node, owner types.UID, part netip.Prefix) (string, error) {
	type object = map[string]any
	id := func(of string) string {
		return uuid.NewSHA1(uuid.NameSpaceOID, []byte(c.Spec.Azure.Subscription+"/"+c.NodeResourceGroup()+of)).String()
	}
	container := object{
		"id": id("/" + n.Name), "assignmentMode": "static", "type": "overlay", "nodeIP": n.Address, "primaryIP": part,
		"subnetName": "routingdomain_" + id("") + "_overlaysubnet", "subnetAddressSpace": c.Spec.Network.PodCIDR, "version": 0,
	}
	text, err := json.Marshal(object{
		"apiVersion": "acn.azure.com/v1alpha", "kind": "NodeNetworkConfig",
		"metadata": object{
			"name": n.Name, "namespace": "kube-system",
			"labels": object{
				"kubernetes.azure.com/podnetwork-delegationguid": "", "kubernetes.azure.com/podnetwork-subnet": "",
				"kubernetes.azure.com/podnetwork-type": "overlay", "managed": "true", "owner": n.Name,
			},
			"ownerReferences": []object{{"apiVersion": "v1", "kind": "Node", "name": n.Name, "uid": owner, "controller": true,
				"blockOwnerDeletion": true}},
		},
		"spec":   object{"requestedIPCount": 0},
		"status": object{"assignedIPCount": 1 << (32 - part.Bits()), "networkContainers": []object{container}},
	})
	return string(text), err
}

// ApplyStatus sets the status of objects to that in the documents, of kinds with the subresource status. It waits as [Apply] does.
func ApplyStatus(ctx context.Context, api rest.Interface, docs []string) error {
	return applyAt(ctx, api, docs, "/status")
}
