package connector

import (
	"context"
	"encoding/base64"
	"fmt"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/pods/kubelet/fieldpath"
)

// volumes are a pod's as Azure has them: empty directories, and files that stay as they are when the group is made.
func (c *Connector) volumes(ctx context.Context, pod *corev1.Pod) ([]aci.Volume, error) {
	var all []aci.Volume
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir != nil {
			all = append(all, aci.Volume{Name: v.Name, EmptyDir: &struct{}{}})
			continue
		}
		files := map[string]string{}
		for _, s := range sources(v) {
			if err := c.addFiles(ctx, files, pod, s); err != nil {
				return nil, fmt.Errorf("volume %s: %w", v.Name, err)
			}
		}
		all = append(all, aci.Volume{Name: v.Name, Secret: files})
	}
	return all, nil
}

// sources are what a volume is made of, all as the parts of a projected one.
func sources(v *corev1.Volume) []corev1.VolumeProjection {
	switch {
	case v.Projected != nil:
		return v.Projected.Sources
	case v.ConfigMap != nil:
		return []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: v.ConfigMap.LocalObjectReference, Items: v.ConfigMap.Items, Optional: v.ConfigMap.Optional}}}
	case v.Secret != nil:
		return []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: v.Secret.SecretName}, Items: v.Secret.Items, Optional: v.Secret.Optional}}}
	case v.DownwardAPI != nil:
		return []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: v.DownwardAPI.Items}}}
	}
	return nil
}

func (c *Connector) addFiles(ctx context.Context, files map[string]string, pod *corev1.Pod, s corev1.VolumeProjection) error {
	switch {
	case s.ConfigMap != nil:
		m, err := c.all.Core().V1().ConfigMaps().Lister().ConfigMaps(pod.Namespace).Get(s.ConfigMap.Name)
		if apierrors.IsNotFound(err) && isTrue(s.ConfigMap.Optional) {
			return nil
		}
		if err != nil {
			return err
		}
		data := map[string][]byte{}
		for k, v := range m.Data {
			data[k] = []byte(v)
		}
		for k, v := range m.BinaryData {
			data[k] = v
		}
		return pick(files, data, s.ConfigMap.Items, isTrue(s.ConfigMap.Optional))
	case s.Secret != nil:
		m, err := c.all.Core().V1().Secrets().Lister().Secrets(pod.Namespace).Get(s.Secret.Name)
		if apierrors.IsNotFound(err) && isTrue(s.Secret.Optional) {
			return nil
		}
		if err != nil {
			return err
		}
		return pick(files, m.Data, s.Secret.Items, isTrue(s.Secret.Optional))
	case s.DownwardAPI != nil:
		for _, item := range s.DownwardAPI.Items {
			text, err := downward(pod, item.FieldRef)
			if err != nil {
				return err
			}
			files[item.Path] = base64.StdEncoding.EncodeToString([]byte(text))
		}
	case s.ServiceAccountToken != nil:
		token, err := c.token(ctx, pod, s.ServiceAccountToken)
		if err != nil {
			return err
		}
		files[s.ServiceAccountToken.Path] = base64.StdEncoding.EncodeToString([]byte(token))
	}
	return nil
}

// pick adds all of an object's data, or the items that are asked for.
func pick(files map[string]string, data map[string][]byte, items []corev1.KeyToPath, optional bool) error {
	if len(items) == 0 {
		for k, v := range data {
			files[k] = base64.StdEncoding.EncodeToString(v)
		}
		return nil
	}
	for _, item := range items {
		v, ok := data[item.Key]
		if !ok && !optional {
			return fmt.Errorf("there is no key %s", item.Key)
		}
		if ok {
			files[item.Path] = base64.StdEncoding.EncodeToString(v)
		}
	}
	return nil
}

// downward is a field of a pod, of those that are known before the group is made.
func downward(pod *corev1.Pod, ref *corev1.ObjectFieldSelector) (string, error) {
	if ref == nil {
		return "", fmt.Errorf("a container group does not know its own resources (resourceFieldRef)")
	}
	if value, ok := fieldpath.Value(pod, ref.FieldPath); ok {
		return value, nil
	}
	return "", fmt.Errorf("a container group does not know %s when it is made", ref.FieldPath)
}

// token is one of the pod's service account. Nobody renews it in a group, so that it holds for as long as the API server allows.
func (c *Connector) token(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, error) {
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
func (c *Connector) secure(pod *corev1.Pod, g *aci.ContainerGroup) {
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

func (c *Connector) secretVariables(namespace string, of *corev1.Container) map[string]bool {
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
