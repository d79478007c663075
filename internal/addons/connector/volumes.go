package connector

import (
	"context"
	"encoding/base64"
	"fmt"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/pods/podspec"
)

// volumes returns a pod's as Azure has them: empty directories, and files that stay as they are when the group is made.
func (c *connector) volumes(ctx context.Context, pod *corev1.Pod) ([]aci.Volume, error) {
	var all []aci.Volume
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir != nil {
			all = append(all, aci.Volume{Name: v.Name, EmptyDir: &struct{}{}})
			continue
		}
		files, err := podspec.Sources{
			Object: func(o podspec.Object) (map[string][]byte, error) { return c.data(pod.Namespace, o) },
			Field:  func(item corev1.DownwardAPIVolumeFile) (string, error) { return downward(pod, item.FieldRef) },
			Token:  func(t *corev1.ServiceAccountTokenProjection) (string, error) { return c.token(ctx, pod, t) },
		}.Files(v)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		secret := map[string]string{}
		for _, f := range files {
			secret[f.Name] = base64.StdEncoding.EncodeToString(f.Data)
		}
		all = append(all, aci.Volume{Name: v.Name, Secret: secret})
	}
	return all, nil
}

// data returns what a ConfigMap or a Secret has.
func (c *connector) data(namespace string, o podspec.Object) (map[string][]byte, error) {
	core := c.all.Core().V1()
	if o.Kind == podspec.Secret {
		secret, err := core.Secrets().Lister().Secrets(namespace).Get(o.Name)
		if err != nil {
			return nil, err
		}
		return secret.Data, nil
	}
	m, err := core.ConfigMaps().Lister().ConfigMaps(namespace).Get(o.Name)
	if err != nil {
		return nil, err
	}
	return podspec.ConfigMapData(m, true), nil
}

// downward returns a field of a pod, of those that are known before the group is made.
func downward(pod *corev1.Pod, ref *corev1.ObjectFieldSelector) (string, error) {
	if ref == nil {
		return "", fmt.Errorf("a container group does not know its own resources (resourceFieldRef)")
	}
	if value, ok := podspec.Field(pod, ref.FieldPath); ok {
		return value, nil
	}
	return "", fmt.Errorf("a container group does not know %s when it is made", ref.FieldPath)
}

// token returns a token of the pod's service account. No process renews it in a group, so it is valid for as long as the API server allows.
func (c *connector) token(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, error) {
	const year = int64(365 * 24 * 3600)
	seconds := year
	spec := authv1.TokenRequestSpec{ExpirationSeconds: &seconds, BoundObjectRef: &authv1.BoundObjectReference{
		Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
	}}
	if p.Audience != "" {
		spec.Audiences = []string{p.Audience}
	}
	t, err := c.cfg.Client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName,
		&authv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of service account %s: %w", pod.Spec.ServiceAccountName, err)
	}
	return t.Status.Token, nil
}

// secure hides the values of variables that come out of Secrets. The library has put the values in; where they are from, the pod in the API
// says.
func (c *connector) secure(pod *corev1.Pod, g *aci.ContainerGroup) {
	origin := c.fromAPI(pod)
	if origin == nil || len(origin.Spec.Containers) != len(g.Properties.Containers) {
		return
	}
	for i := range origin.Spec.Containers {
		secret := c.secretVariables(origin.Namespace, &origin.Spec.Containers[i])
		env := g.Properties.Containers[i].Properties.Environment
		for j, v := range env {
			if secret[v.Name] {
				env[j] = aci.Variable{Name: v.Name, SecureValue: v.Value}
			}
		}
	}
}

func (c *connector) secretVariables(namespace string, of *corev1.Container) map[string]bool {
	names := map[string]bool{}
	for _, from := range of.EnvFrom {
		if from.SecretRef == nil {
			continue
		}
		if s, err := c.all.Core().V1().Secrets().Lister().Secrets(namespace).Get(from.SecretRef.Name); err == nil {
			for k := range s.Data {
				names[from.Prefix+k] = true
			}
		}
	}
	for _, e := range of.Env {
		names[e.Name] = e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil
	}
	return names
}
