package kubelet

import (
	"fmt"
	"maps"
	"math/big"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"packetwalk.dev/internal/pods/podspec"
)

// A configSource gives what a pod's environment and volumes are made of: of a ConfigMap what is text, or all. An object that is not there
// is an error that names it.
type configSource interface {
	data(namespace string, o podspec.Object, binary bool) (map[string][]byte, error)
}

// podFacts are what the downward API tells: the pod, where it runs and with which addresses.
type podFacts struct {
	pod         *corev1.Pod
	hostIP      string
	podIPs      []string
	allocatable corev1.ResourceList // of the node: the limit of a container that has none
}

// environment is a container's: the services' variables, then envFrom, then env, the later ones winning, with $(NAME) expanded
// (pkg/kubelet/kubelet_pods.go: makeEnvironmentVariables). It is sorted by name but for env, which keeps its order.
func environment(c *corev1.Container, f podFacts, services []*corev1.Service, src configSource) ([]string, error) {
	vars := serviceEnv(services, f.pod.Namespace, f.pod.Spec.EnableServiceLinks == nil || *f.pod.Spec.EnableServiceLinks)
	if err := envFrom(vars, c, f.pod.Namespace, src); err != nil {
		return nil, err
	}
	order := slices.Sorted(maps.Keys(vars))
	for _, e := range c.Env {
		value, ok, err := envValue(e, c, f, vars, src)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if i := slices.Index(order, e.Name); i >= 0 {
			order = slices.Delete(order, i, i+1)
		}
		order = append(order, e.Name)
		vars[e.Name] = value
	}
	env := make([]string, 0, len(order))
	for _, name := range order {
		env = append(env, name+"="+vars[name])
	}
	return env, nil
}

func envFrom(vars map[string]string, c *corev1.Container, namespace string, src configSource) error {
	for _, from := range c.EnvFrom {
		var o podspec.Object
		var optional *bool
		switch {
		case from.ConfigMapRef != nil:
			o, optional = podspec.Object{Kind: podspec.ConfigMap, Name: from.ConfigMapRef.Name}, from.ConfigMapRef.Optional
		case from.SecretRef != nil:
			o, optional = podspec.Object{Kind: podspec.Secret, Name: from.SecretRef.Name}, from.SecretRef.Optional
		default:
			continue
		}
		data, err := src.data(namespace, o, false)
		if err != nil && !isTrue(optional) {
			return err
		}
		for k, v := range data {
			if name := from.Prefix + k; envName(name) {
				vars[name] = string(v)
			}
		}
	}
	return nil
}

// envName tells whether a key can be a variable's name: anything printable but "=" (as relaxed by Kubernetes 1.34,
// RelaxedEnvironmentVariableValidation).
func envName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7e || r == '=' })
}

func isTrue(b *bool) bool { return b != nil && *b }

// envValue is the value of one variable; ok is false for one whose optional source is not there.
func envValue(e corev1.EnvVar, c *corev1.Container, f podFacts, vars map[string]string, src configSource) (value string, ok bool,
	err error) {
	from := e.ValueFrom
	switch {
	case from == nil:
		return podspec.Expand(e.Value, vars), true, nil
	case from.FieldRef != nil:
		value, err = fieldValue(from.FieldRef.FieldPath, f)
		return value, err == nil, err
	case from.ResourceFieldRef != nil:
		if n := from.ResourceFieldRef.ContainerName; n != "" && n != c.Name {
			if c = findContainer(f.pod, n); c == nil {
				return "", false, fmt.Errorf("container %s not found", n)
			}
		}
		value, err = resourceValue(from.ResourceFieldRef, c, f.allocatable)
		return value, err == nil, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		return keyValue(src, f.pod.Namespace, podspec.Object{Kind: podspec.ConfigMap, Name: ref.Name}, ref.Key, isTrue(ref.Optional))
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		return keyValue(src, f.pod.Namespace, podspec.Object{Kind: podspec.Secret, Name: ref.Name}, ref.Key, isTrue(ref.Optional))
	}
	return "", false, fmt.Errorf("variable %s has a source that is not supported", e.Name)
}

func keyValue(src configSource, namespace string, o podspec.Object, key string, optional bool) (value string, ok bool, err error) {
	data, err := src.data(namespace, o, false)
	v, ok := data[key]
	if err == nil && !ok {
		err = fmt.Errorf("couldn't find key %s in %s %s/%s", key, o.Kind, namespace, o.Name)
	}
	if optional {
		err = nil
	}
	return string(v), ok, err
}

func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// serviceEnv gives the variables of the services of a namespace and of default/kubernetes, which every pod gets
// (Kubernetes, "Discovering services: environment variables").
func serviceEnv(services []*corev1.Service, namespace string, links bool) map[string]string {
	seen := make(map[string]*corev1.Service)
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		master := s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes"
		if own := s.Namespace == namespace && links; own || master && seen[s.Name] == nil {
			seen[s.Name] = s
		}
	}
	vars := make(map[string]string)
	for _, s := range seen {
		oneServiceEnv(vars, s)
	}
	return vars
}

func oneServiceEnv(vars map[string]string, s *corev1.Service) {
	shout := func(n string) string { return strings.ToUpper(strings.ReplaceAll(n, "-", "_")) }
	name, ip := shout(s.Name), s.Spec.ClusterIP
	vars[name+"_SERVICE_HOST"] = ip
	vars[name+"_SERVICE_PORT"] = strconv.Itoa(int(s.Spec.Ports[0].Port))
	for i, p := range s.Spec.Ports {
		port, protocol := strconv.Itoa(int(p.Port)), strings.ToLower(string(p.Protocol))
		if protocol == "" {
			protocol = "tcp"
		}
		if p.Name != "" {
			vars[name+"_SERVICE_PORT_"+shout(p.Name)] = port
		}
		url := protocol + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			vars[name+"_PORT"] = url
		}
		prefix := name + "_PORT_" + port + "_" + strings.ToUpper(protocol)
		vars[prefix], vars[prefix+"_PROTO"], vars[prefix+"_PORT"], vars[prefix+"_ADDR"] = url, protocol, port, ip
	}
}

// fieldValue is what the downward API's fieldRef gives.
func fieldValue(path string, f podFacts) (string, error) {
	switch path {
	case "status.hostIP", "status.hostIPs":
		return f.hostIP, nil
	case "status.podIP":
		if len(f.podIPs) == 0 {
			return "", nil
		}
		return f.podIPs[0], nil
	case "status.podIPs":
		return strings.Join(f.podIPs, ","), nil
	}
	if value, ok := podspec.Field(f.pod, path); ok {
		return value, nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

// resourceValue is what resourceFieldRef gives: the request or limit divided by the divisor, rounded up. A missing limit is the node's.
func resourceValue(ref *corev1.ResourceFieldSelector, c *corev1.Container, allocatable corev1.ResourceList) (string, error) {
	kind, name, ok := strings.Cut(ref.Resource, ".")
	if !ok || kind != "limits" && kind != "requests" {
		return "", fmt.Errorf("unsupported container resource: %v", ref.Resource)
	}
	list := c.Resources.Limits
	if kind == "requests" {
		list = c.Resources.Requests
	}
	q, have := list[corev1.ResourceName(name)]
	if !have && kind == "limits" {
		q = allocatable[corev1.ResourceName(name)]
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	// In nano units both are whole numbers.
	a, b := new(big.Int), new(big.Int)
	for _, x := range []struct {
		q   resource.Quantity
		out *big.Int
	}{{q, a}, {divisor, b}} {
		d := x.q.AsDec()
		x.out.Set(d.UnscaledBig())
		if shift := 9 - int64(d.Scale()); shift >= 0 {
			x.out.Mul(x.out, new(big.Int).Exp(big.NewInt(10), big.NewInt(shift), nil))
		}
	}
	quotient, rest := new(big.Int).QuoRem(a, b, new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return quotient.String(), nil
}
