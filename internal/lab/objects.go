package lab

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// objects are the documents of a template, one object each.
func objects(text string, values map[string]any) ([]string, error) {
	t, err := template.New("").Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, values)
	return strings.Split(b.String(), "\n---\n"), err
}

// apiPaths are where the API has the kinds of objects that applyObject takes, %s the namespace.
var apiPaths = map[string]string{
	"v1/ServiceAccount":                        "/api/v1/namespaces/%s/serviceaccounts/",
	"v1/ConfigMap":                             "/api/v1/namespaces/%s/configmaps/",
	"v1/Secret":                                "/api/v1/namespaces/%s/secrets/",
	"v1/Service":                               "/api/v1/namespaces/%s/services/",
	"apps/v1/Deployment":                       "/apis/apps/v1/namespaces/%s/deployments/",
	"networking.k8s.io/v1/IngressClass":        "/apis/networking.k8s.io/v1/ingressclasses/%.0s",
	"rbac.authorization.k8s.io/v1/ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles/%.0s",
	"rbac.authorization.k8s.io/v1/ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/%.0s",
}

// applyObjects brings objects into the API, as AKS's add-on manager does: what is there is made the same.
func applyObjects(ctx context.Context, api rest.Interface, docs []string) error {
	for _, doc := range docs {
		if err := applyObject(ctx, api, doc); err != nil {
			return err
		}
	}
	return nil
}

// deleteObjects takes objects out of the API, the last first. One that is gone is no error.
func deleteObjects(ctx context.Context, api rest.Interface, docs []string) error {
	for _, doc := range slices.Backward(docs) {
		name, path, err := objectPath(doc)
		if err != nil {
			return fmt.Errorf("delete %s: %w", name, err)
		}
		if err := api.Delete().AbsPath(path).Param("propagationPolicy", "Background").Do(ctx).Error(); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", name, err)
		}
	}
	return nil
}

// objectPath is an object's name for messages and its path in the API.
func objectPath(doc string) (name, path string, err error) {
	var o struct {
		APIVersion, Kind string
		Metadata         struct{ Namespace, Name string }
	}
	if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
		return "object", "", err
	}
	name = o.Kind + " " + o.Metadata.Name
	path, known := apiPaths[o.APIVersion+"/"+o.Kind]
	if !known {
		return name, "", fmt.Errorf("unknown kind")
	}
	return name, fmt.Sprintf(path, o.Metadata.Namespace) + o.Metadata.Name, nil
}

// applyObject makes one object what the document says, by server-side apply. kube-system itself comes a moment after the API server is
// ready.
func applyObject(ctx context.Context, api rest.Interface, doc string) error {
	name, path, err := objectPath(doc)
	if err != nil {
		return fmt.Errorf("apply %s: %w", name, err)
	}
	for {
		err := api.Patch(types.ApplyPatchType).AbsPath(path).Param("fieldManager", "packetwalk").Param("force",
			"true").Body([]byte(doc)).Do(ctx).Error()
		if err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("apply %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apply %s: %w", name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
