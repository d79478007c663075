package manifests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"packetwalk.dev/internal/base/pause"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// apiPaths are where the API has the kinds of objects that are applied, %s the namespace.
var apiPaths = map[string]string{
	"v1/Namespace":       "/api/v1/namespaces%.0s",
	"v1/ServiceAccount":  "/api/v1/namespaces/%s/serviceaccounts",
	"v1/ConfigMap":       "/api/v1/namespaces/%s/configmaps",
	"v1/Secret":          "/api/v1/namespaces/%s/secrets",
	"v1/Service":         "/api/v1/namespaces/%s/services",
	"apps/v1/DaemonSet":  "/apis/apps/v1/namespaces/%s/daemonsets",
	"apps/v1/Deployment": "/apis/apps/v1/namespaces/%s/deployments",
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy":           "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies%.0s",
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding":    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings%.0s",
	"admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies%.0s",
	"admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicybindings%.0s",
	"storage.k8s.io/v1/StorageClass":                                      "/apis/storage.k8s.io/v1/storageclasses%.0s",
	"networking.k8s.io/v1/IngressClass":                                   "/apis/networking.k8s.io/v1/ingressclasses%.0s",
	"rbac.authorization.k8s.io/v1/ClusterRole":                            "/apis/rbac.authorization.k8s.io/v1/clusterroles%.0s",
	"rbac.authorization.k8s.io/v1/ClusterRoleBinding":                     "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings%.0s",
	"rbac.authorization.k8s.io/v1/RoleBinding":                            "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings",
	"apiregistration.k8s.io/v1/APIService":                                "/apis/apiregistration.k8s.io/v1/apiservices%.0s",
	"apiextensions.k8s.io/v1/CustomResourceDefinition":                    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions%.0s",
	"acn.azure.com/v1alpha/NodeNetworkConfig":                             "/apis/acn.azure.com/v1alpha/namespaces/%s/nodenetworkconfigs",
	"crd.projectcalico.org/v1/IPPool":                                     "/apis/crd.projectcalico.org/v1/ippools%.0s",
	"crd.projectcalico.org/v1/ClusterInformation":                         "/apis/crd.projectcalico.org/v1/clusterinformations%.0s",
	"crd.projectcalico.org/v1/FelixConfiguration":                         "/apis/crd.projectcalico.org/v1/felixconfigurations%.0s",
	"crd.projectcalico.org/v1/Tier":                                       "/apis/crd.projectcalico.org/v1/tiers%.0s",
}

// object is what is known of a document: its name for messages, and its path in the API.
type object struct{ name, path string }

func parse(doc string) (object, error) {
	var o struct {
		APIVersion, Kind string
		Metadata         struct{ Namespace, Name string }
	}
	if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
		return object{name: "object"}, err
	}
	name := o.Kind + " " + o.Metadata.Name
	path, known := apiPaths[o.APIVersion+"/"+o.Kind]
	if !known {
		return object{name: name}, fmt.Errorf("unknown kind")
	}
	return object{name, fmt.Sprintf(path, o.Metadata.Namespace) + "/" + o.Metadata.Name}, nil
}

// Apply makes objects in the API what the documents say, by server-side apply, as AKS's add-on manager does. It waits until the API has
// their namespaces and kinds, which come some moments after the API server is ready, or after the kind is defined.
func Apply(ctx context.Context, api rest.Interface, docs []string) error {
	return applyAt(ctx, api, docs, "")
}

// applyAt applies documents at a subresource, "" for none.
func applyAt(ctx context.Context, api rest.Interface, docs []string, subresource string) error {
	return each(docs, "apply", func(o object, doc string) error {
		return Retry(ctx, func() error {
			return api.Patch(types.ApplyPatchType).AbsPath(o.path+subresource).Param("fieldManager", "packetwalk").Param("force", "true").
				Body([]byte(doc)).Do(ctx).Error()
		})
	})
}

// Ensure makes objects that are not there; the others stay as they are. It waits as [Apply] does. It makes them by an apply: where the
// definition of a custom resource is new, the API server holds a POST back for two seconds (apiextensions-apiserver,
// customresource_handler.go).
func Ensure(ctx context.Context, api rest.Interface, docs []string) error {
	return each(docs, "create", func(o object, doc string) error {
		err := Retry(ctx, func() error {
			if err := api.Get().AbsPath(o.path).Do(ctx).Error(); !apierrors.IsNotFound(err) {
				return err
			}
			return api.Patch(types.ApplyPatchType).AbsPath(o.path).Param("fieldManager", "packetwalk").Body([]byte(doc)).Do(ctx).Error()
		})
		if apierrors.IsConflict(err) { // made by another meanwhile
			return nil
		}
		return err
	})
}

// Delete takes objects out of the API, the last first. One that is gone is no error.
func Delete(ctx context.Context, api rest.Interface, docs []string) error {
	docs = slices.Clone(docs)
	slices.Reverse(docs)
	return each(docs, "delete", func(o object, _ string) error {
		return Retry(ctx, func() error {
			err := api.Delete().AbsPath(o.path).Param("propagationPolicy", "Background").Do(ctx).Error()
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	})
}

// Served waits until the API has something at a path.
func Served(ctx context.Context, api rest.Interface, path string) error {
	return Retry(ctx, func() error { return api.Get().AbsPath(path).Do(ctx).Error() })
}

func each(docs []string, verb string, do func(o object, doc string) error) error {
	for _, doc := range docs {
		o, err := parse(doc)
		if err == nil {
			err = do(o, doc)
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", verb, o.name, err)
		}
	}
	return nil
}

// Retry tries again while the API has no such path, or does not answer, until ctx ends.
func Retry(ctx context.Context, try func() error) error {
	for {
		if err := try(); err == nil || Final(err) || !pause.For(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// Final reports whether an error is the API's last word. A time-out, a lost connection and
// "not found" are not: the machine may be slow.
func Final(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false // no answer
	}
	return !apierrors.IsNotFound(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsTimeout(err) && !apierrors.IsTooManyRequests(err) &&
		!apierrors.IsServiceUnavailable(err) && !apierrors.IsInternalError(err)
}
