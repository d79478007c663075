package podspec

import (
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"packetwalk.dev/internal/pods/safepath"
)

// An Object is a ConfigMap or a Secret of the pod's namespace.
type Object struct{ Kind, Name string }

// The kinds of objects.
const (
	ConfigMap = "ConfigMap"
	Secret    = "Secret"
)

// ConfigMapData returns a ConfigMap's data, what is text alone or all of it.
func ConfigMapData(m *corev1.ConfigMap, binary bool) map[string][]byte {
	data := make(map[string][]byte, len(m.Data)+len(m.BinaryData))
	if binary {
		for k, v := range m.BinaryData {
			data[k] = v
		}
	}
	for k, v := range m.Data {
		data[k] = []byte(v)
	}
	return data
}

// Parts returns what a volume of files is made of, all as the parts of a projected one, and the mode of the files that have none of their
// own; ok is false for a volume that is none of files.
func Parts(v *corev1.Volume) (parts []corev1.VolumeProjection, m *int32, ok bool) {
	switch {
	case v.Projected != nil:
		return v.Projected.Sources, v.Projected.DefaultMode, true
	case v.ConfigMap != nil:
		return []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: v.ConfigMap.LocalObjectReference, Items: v.ConfigMap.Items, Optional: v.ConfigMap.Optional,
		}}}, v.ConfigMap.DefaultMode, true
	case v.Secret != nil:
		return []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: v.Secret.SecretName}, Items: v.Secret.Items, Optional: v.Secret.Optional,
		}}}, v.Secret.DefaultMode, true
	case v.DownwardAPI != nil:
		return []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: v.DownwardAPI.Items}}}, v.DownwardAPI.DefaultMode,
			true
	}
	return nil, nil, false
}

// Sources is where the contents of files come from.
type Sources struct {
	Object func(Object) (map[string][]byte, error) // also of one that is not there (apierrors.IsNotFound)
	Field  func(corev1.DownwardAPIVolumeFile) (string, error)
	Token  func(*corev1.ServiceAccountTokenProjection) (string, error)
}

// Files returns those of a volume.
func (s Sources) Files(v *corev1.Volume) (files []safepath.File, err error) {
	parts, m, ok := Parts(v)
	if !ok {
		return nil, errors.New("labs do not have this kind of volume: " +
			"use configMap, secret, downwardAPI, projected, emptyDir, hostPath or persistentVolumeClaim")
	}
	for _, p := range parts {
		more, err := s.part(p, m)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	return files, nil
}

func (s Sources) part(p corev1.VolumeProjection, m *int32) ([]safepath.File, error) {
	switch {
	case p.ConfigMap != nil:
		return s.object(Object{ConfigMap, p.ConfigMap.Name}, p.ConfigMap.Items, m, p.ConfigMap.Optional)
	case p.Secret != nil:
		return s.object(Object{Secret, p.Secret.Name}, p.Secret.Items, m, p.Secret.Optional)
	case p.DownwardAPI != nil:
		var files []safepath.File
		for _, item := range p.DownwardAPI.Items {
			value, err := s.Field(item)
			if err != nil {
				return nil, err
			}
			files = append(files, safepath.File{Name: item.Path, Data: []byte(value), Mode: mode(item.Mode, m)})
		}
		return files, nil
	case p.ServiceAccountToken != nil:
		token, err := s.Token(p.ServiceAccountToken)
		if err != nil {
			return nil, fmt.Errorf("failed to fetch token: %w", err)
		}
		return []safepath.File{{Name: p.ServiceAccountToken.Path, Data: []byte(token), Mode: mode(m)}}, nil
	}
	return nil, errors.New("labs do not have this source of a projected volume")
}

// mode returns the first that is set, or the usual one.
func mode(of ...*int32) os.FileMode {
	if i := slices.IndexFunc(of, func(m *int32) bool { return m != nil }); i >= 0 {
		return os.FileMode(*of[i]).Perm()
	}
	return 0o644
}

// object returns the keys of an object as files: all of them, or the items.
func (s Sources) object(o Object, items []corev1.KeyToPath, m *int32, mayMiss *bool) (files []safepath.File, err error) {
	optional := mayMiss != nil && *mayMiss
	data, err := s.Object(o)
	if err != nil {
		if optional && apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, err
	}
	if len(items) == 0 {
		for k, b := range data {
			files = append(files, safepath.File{Name: k, Data: b, Mode: mode(m)})
		}
		return files, nil
	}
	for _, item := range items {
		b, ok := data[item.Key]
		if !ok && optional {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("references non-existent config key: %s", item.Key)
		}
		files = append(files, safepath.File{Name: item.Path, Data: b, Mode: mode(item.Mode, m)})
	}
	return files, nil
}
