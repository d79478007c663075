package lab

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/lab/cluster"
)

// calicoCRDs are Calico's resources, one document each.
//
//go:embed calico/crds.yaml
var calicoCRDs string

const (
	crdPath    = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
	ippoolPath = "/apis/crd.projectcalico.org/v1/ippools"
	felixPath  = "/apis/crd.projectcalico.org/v1/felixconfigurations"
)

// calico are Calico's resources, where the cluster's network policy is Calico's.
type calico struct {
	still
	*core
	api   *api
	nodes *nodes
}

// Start makes the API serve Calico's resources and gives it the pool that AKS's add-on manager makes. A pool of that name that is there
// already stays as it is.
func (l *calico) Start(ctx context.Context) error {
	if l.cluster().Spec.Network.Policy != cluster.PolicyCalico {
		return nil
	}
	api := l.api.client.CoreV1().RESTClient()
	for doc := range strings.SplitSeq(calicoCRDs, "\n---\n") {
		if err := applyCRD(ctx, api, doc); err != nil {
			return err
		}
	}
	pool, err := defaultPool(l.cluster().PodRange())
	if err != nil {
		return err
	}
	return createWhenServed(ctx, api, pool)
}

// applyCRD makes one CustomResourceDefinition what the document says, by server-side apply.
func applyCRD(ctx context.Context, api rest.Interface, doc string) error {
	var named struct{ Metadata struct{ Name string } }
	if err := yaml.Unmarshal([]byte(doc), &named); err != nil {
		return err
	}
	err := api.Patch(types.ApplyPatchType).AbsPath(crdPath+named.Metadata.Name).
		Param("fieldManager", "packetwalk").Param("force", "true").Body([]byte(doc)).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("apply CustomResourceDefinition %s: %w", named.Metadata.Name, err)
	}
	return nil
}

// createWhenServed waits until the API serves what has just been defined, which it does some moments later, and creates the pool.
func createWhenServed(ctx context.Context, api rest.Interface, pool []byte) error {
	for {
		err := api.Post().AbsPath(ippoolPath).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(pool).Do(ctx).Error()
		if err == nil || apierrors.IsAlreadyExists(err) {
			err = api.Get().AbsPath(felixPath).Do(ctx).Error()
		}
		if err == nil || !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// defaultPool is the pool that AKS makes: the range that its pods get addresses of. Labels and annotation are what its add-on manager,
// which applies it as kubectl does, leaves on it.
func defaultPool(pods netip.Prefix) ([]byte, error) {
	type object = map[string]any
	labels := object{"addonmanager.kubernetes.io/mode": "Reconcile"}
	const name, lastApplied = "default-ipv4-ippool", "kubectl.kubernetes.io/last-applied-configuration"
	pool := object{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
		"metadata": object{"name": name, "labels": labels, "annotations": object{}},
		"spec":     object{"blockSize": 26, "cidr": pods.String(), "ipipMode": "Never", "natOutgoing": true},
	}
	applied, err := json.Marshal(pool)
	if err != nil {
		return nil, err
	}
	pool["metadata"] = object{"name": name, "labels": labels, "annotations": object{lastApplied: string(applied) + "\n"}}
	return json.Marshal(pool)
}
