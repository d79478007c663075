package capture

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// ObjectList is one list of Kubernetes objects in a capture, and where the API has it.
type ObjectList struct {
	File string
	// Paths are those of the API; what is at one of them is one list, or one object. Where there is none (404), it holds none.
	Paths []string
	// trim keeps of an object what walks use: everything else, first of all what a container gets in its environment, does not get into
	// a capture.
	trim func(json.RawMessage) ([]byte, error)
}

// ObjectLists are all lists of a capture. Secrets are not among them; of the ConfigMaps there are those of the ip-masq-agent.
var ObjectLists = []ObjectList{
	{"pods.json", []string{"/api/v1/pods"}, trimPod},
	{"services.json", []string{"/api/v1/services"}, trimTo[serviceObject]},
	{"endpointslices.json", []string{"/apis/discovery.k8s.io/v1/endpointslices"}, trimTo[sliceObject]},
	{"nodes.json", []string{"/api/v1/nodes"}, trimTo[nodeObject]},
	{"ippools.json", []string{"/apis/crd.projectcalico.org/v1/ippools"}, trimTo[poolObject]},
	{NetworkPoliciesFile, []string{"/apis/networking.k8s.io/v1/networkpolicies"}, trimNetworkPolicy},
	{RuntimeClassesFile, []string{"/apis/node.k8s.io/v1/runtimeclasses"}, trimTo[runtimeClassObject]},
	{configMapsFile, ConfigMapPaths(ConfigMapNames), trimConfigMap},
}

const configMapsFile = "configmaps.json"

// HasConfigMaps reports whether the list is that of the ip-masq-agent's ConfigMaps, of which the cluster's pods tell the names.
func (l ObjectList) HasConfigMaps() bool { return l.File == configMapsFile }

// ConfigMapNames are those of the ip-masq-agent in namespace kube-system as its manifests name them (kubernetes-sigs/ip-masq-agent;
// Azure/ip-masq-agent-v2 as AKS installs it; this project's chart). They are read where no pod tells of others (MasqConfigMaps).
var ConfigMapNames = []string{
	"ip-masq-agent", "azure-ip-masq-agent-config", "azure-ip-masq-agent-config-reconciled", "packetwalk-ip-masq",
}

const masqNamespace = "kube-system"

// ConfigMapPaths returns the API's paths of some ConfigMaps of the ip-masq-agent.
func ConfigMapPaths(names []string) (paths []string) {
	for _, name := range names {
		paths = append(paths, "/api/v1/namespaces/"+masqNamespace+"/configmaps/"+name)
	}
	return paths
}

// ServiceLabel names the Service that an EndpointSlice belongs to (discovery.k8s.io/v1, LabelServiceName).
const ServiceLabel = "kubernetes.io/service-name"

// The shapes of the API as far as a capture keeps them (k8s.io/api core/v1, discovery/v1; Calico's crd.projectcalico.org/v1).
type (
	metaObject struct {
		Namespace string            `json:"namespace,omitempty"`
		Name      string            `json:"name"`
		Labels    map[string]string `json:"labels,omitempty"`
	}
	podObject struct {
		Metadata struct {
			metaObject
			UID string `json:"uid,omitempty"` // which each object of the API has, and none of a capture
			// OwnerReferences has the controller alone. Captures by older versions lack the field.
			OwnerReferences []ownerObject `json:"ownerReferences,omitzero"`
		} `json:"metadata"`
		Spec struct {
			NodeName     string `json:"nodeName,omitempty"`
			HostNetwork  bool   `json:"hostNetwork,omitempty"`
			RuntimeClass string `json:"runtimeClassName,omitempty"`
		} `json:"spec"`
		Status struct {
			Phase  string          `json:"phase,omitempty"`
			PodIPs []addressObject `json:"podIPs,omitempty"`
		} `json:"status"`
	}
	ownerObject struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Name       string `json:"name"`
		Controller bool   `json:"controller"`
	}
	addressObject struct {
		IP string `json:"ip,omitempty"`
	}
	serviceObject struct {
		Metadata metaObject `json:"metadata"`
		Spec     struct {
			Type                  string       `json:"type,omitempty"`
			ClusterIPs            []string     `json:"clusterIPs,omitempty"`
			ExternalIPs           []string     `json:"externalIPs,omitempty"`
			LoadBalancerIP        string       `json:"loadBalancerIP,omitempty"`
			ExternalTrafficPolicy string       `json:"externalTrafficPolicy,omitempty"`
			InternalTrafficPolicy string       `json:"internalTrafficPolicy,omitempty"`
			HealthCheckNodePort   uint16       `json:"healthCheckNodePort,omitempty"`
			SessionAffinity       string       `json:"sessionAffinity,omitempty"`
			Ports                 []portObject `json:"ports,omitempty"`
		} `json:"spec"`
		Status struct {
			LoadBalancer struct {
				Ingress []addressObject `json:"ingress,omitempty"`
			} `json:"loadBalancer"`
		} `json:"status"`
	}
	portObject struct {
		Name     string `json:"name,omitempty"`
		Protocol string `json:"protocol,omitempty"`
		Port     uint16 `json:"port"`
		NodePort uint16 `json:"nodePort,omitempty"`
	}
	sliceObject struct {
		Metadata    metaObject       `json:"metadata"`
		AddressType string           `json:"addressType"`
		Endpoints   []endpointObject `json:"endpoints"`
		Ports       []portObject     `json:"ports"`
	}
	endpointObject struct {
		Addresses  []string `json:"addresses"`
		NodeName   string   `json:"nodeName,omitempty"`
		Conditions struct {
			Ready       *bool `json:"ready,omitempty"`
			Serving     *bool `json:"serving,omitempty"`
			Terminating *bool `json:"terminating,omitempty"`
		} `json:"conditions"`
	}
	nodeObject struct {
		Metadata metaObject `json:"metadata"`
		Spec     struct {
			PodCIDRs   []string `json:"podCIDRs,omitempty"`
			ProviderID string   `json:"providerID,omitempty"`
		} `json:"spec"`
		Status struct {
			Addresses []struct {
				Type    string `json:"type"`
				Address string `json:"address"`
			} `json:"addresses,omitempty"`
		} `json:"status"`
	}
	poolObject struct {
		Metadata metaObject `json:"metadata"`
		Spec     struct {
			CIDR        string `json:"cidr"`
			NATOutgoing bool   `json:"natOutgoing,omitempty"`
			Disabled    bool   `json:"disabled,omitempty"`
			IPIPMode    string `json:"ipipMode,omitempty"`
			VXLANMode   string `json:"vxlanMode,omitempty"`
		} `json:"spec"`
	}
	configMapObject struct {
		Metadata metaObject        `json:"metadata"`
		Data     map[string]string `json:"data,omitempty"`
	}
)

func trimTo[T any](object json.RawMessage) ([]byte, error) {
	var kept T
	if err := json.Unmarshal(object, &kept); err != nil {
		return nil, err
	}
	return json.Marshal(kept)
}

// trimPod keeps of the owners of a pod its controller.
func trimPod(object json.RawMessage) ([]byte, error) {
	var kept podObject
	if err := json.Unmarshal(object, &kept); err != nil {
		return nil, err
	}
	m := &kept.Metadata
	if m.OwnerReferences == nil && m.UID != "" {
		m.OwnerReferences = []ownerObject{}
	}
	m.UID, m.OwnerReferences = "", slices.DeleteFunc(m.OwnerReferences, func(o ownerObject) bool { return !o.Controller })
	return json.Marshal(kept)
}

// trimConfigMap keeps the keys that ip-masq-agents read: a pod may name any ConfigMap for one of theirs.
func trimConfigMap(object json.RawMessage) ([]byte, error) {
	var kept configMapObject
	if err := json.Unmarshal(object, &kept); err != nil {
		return nil, err
	}
	maps.DeleteFunc(kept.Data, func(key, _ string) bool { return !strings.HasPrefix(key, masqKeys) })
	return json.Marshal(kept)
}

// masqKeys is what all keys begin with that ip-masq-agents read (Azure/ip-masq-agent-v2, configFilePrefix).
const masqKeys = "ip-masq"

// Trim gives what a capture keeps of an answer of the API: of each object of a list, or of the single object.
func (l ObjectList) Trim(answer []byte) ([]json.RawMessage, error) {
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(answer, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", l.File, err)
	}
	if list.Items == nil && bytesHave(answer, "metadata", "name") {
		list.Items = []json.RawMessage{answer}
	}
	for i, item := range list.Items {
		kept, err := l.trim(item)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.File, err)
		}
		list.Items[i] = kept
	}
	return list.Items, nil
}

// List makes a list of a capture out of trimmed objects, each on a line of its own.
func List(objects []json.RawMessage) []byte {
	lines := make([][]byte, len(objects))
	for i, o := range objects {
		lines[i] = o
	}
	return slices.Concat([]byte("{\"items\":[\n"), bytes.Join(lines, []byte(",\n")), []byte("\n]}\n"))
}

// bytesHave reports whether a JSON object has a non-empty text at a path of two fields.
func bytesHave(object []byte, outer, inner string) bool {
	var fields map[string]json.RawMessage
	var meta map[string]any
	if json.Unmarshal(object, &fields) != nil || json.Unmarshal(fields[outer], &meta) != nil {
		return false
	}
	text, _ := meta[inner].(string)
	return text != ""
}

// ReadObjects reads lists by the File of ObjectLists, trimmed or as "kubectl get … -o json" prints them. A list that is not there is empty.
func ReadObjects(lists map[string][]byte) (snapshot.Objects, error) {
	var o snapshot.Objects
	pods, err := items[podObject](lists, "pods.json", nil)
	services, err := items[serviceObject](lists, "services.json", err)
	endpoints, err := items[sliceObject](lists, "endpointslices.json", err)
	nodes, err := items[nodeObject](lists, "nodes.json", err)
	pools, err := items[poolObject](lists, "ippools.json", err)
	configs, err := items[configMapObject](lists, configMapsFile, err)
	policies, err := items[networkPolicyObject](lists, NetworkPoliciesFile, err)
	classes, err := items[runtimeClassObject](lists, RuntimeClassesFile, err)
	if err != nil {
		return o, err
	}
	if o.NetworkPolicies, err = networkPolicies(policies, lists[NetworkPoliciesFile] != nil); err != nil {
		return snapshot.Objects{}, err
	}
	for _, p := range pods {
		pod := p.pod()
		pod.Sandbox = sandbox(p.Spec.RuntimeClass, classes)
		if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			o.Ended = append(o.Ended, pod)
		} else {
			o.Pods = append(o.Pods, pod)
		}
	}
	byService := map[[2]string][]sliceObject{}
	for _, e := range endpoints {
		key := [2]string{e.Metadata.Namespace, e.Metadata.Labels[ServiceLabel]}
		byService[key] = append(byService[key], e)
	}
	for _, s := range services {
		o.Services = append(o.Services, s.service(byService[[2]string{s.Metadata.Namespace, s.Metadata.Name}]))
	}
	for _, n := range nodes {
		o.Nodes = append(o.Nodes, n.node())
	}
	for _, p := range pools {
		if cidr, err := netip.ParsePrefix(p.Spec.CIDR); err == nil {
			o.Pools = append(o.Pools, snapshot.Pool{Name: p.Metadata.Name, CIDR: cidr, NATOutgoing: p.Spec.NATOutgoing, Disabled: p.Spec.Disabled})
		}
	}
	for _, c := range configs {
		o.ConfigMaps = append(o.ConfigMaps, snapshot.ConfigMap{Namespace: c.Metadata.Namespace, Name: c.Metadata.Name, Data: c.Data})
	}
	return o, nil
}

func (p podObject) pod() snapshot.Pod {
	pod := snapshot.Pod{Namespace: p.Metadata.Namespace, Name: p.Metadata.Name, Node: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork,
		Labels: p.Metadata.Labels}
	for _, a := range p.Status.PodIPs {
		pod.IPs = appendAddr(pod.IPs, a.IP)
	}
	if p.Metadata.OwnerReferences != nil || p.Metadata.UID != "" {
		pod.Controller = &snapshot.Controller{}
	}
	for _, o := range p.Metadata.OwnerReferences {
		if group, _, _ := strings.Cut(o.APIVersion, "/"); o.Controller {
			pod.Controller = &snapshot.Controller{Kind: o.Kind + "." + group, Name: o.Name}
		}
	}
	return pod
}

func (n nodeObject) node() snapshot.Node {
	node := snapshot.Node{Name: n.Metadata.Name, ProviderID: n.Spec.ProviderID}
	for _, a := range n.Status.Addresses {
		if a.Type == "InternalIP" || a.Type == "ExternalIP" {
			node.IPs = appendAddr(node.IPs, a.Address)
		}
	}
	for _, c := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(c); err == nil {
			node.PodCIDRs = append(node.PodCIDRs, p)
		}
	}
	return node
}

// items returns those of the list in a file; none after an error before, which it passes on.
func items[T any](lists map[string][]byte, file string, before error) ([]T, error) {
	if before != nil || lists[file] == nil {
		return nil, before
	}
	var list struct{ Items boundedList[T] }
	err := checkObjects(lists[file], maxFileBytes)
	if err == nil {
		err = json.Unmarshal(lists[file], &list)
	}
	if err != nil {
		return nil, fmt.Errorf("read Kubernetes objects: %s: %w", file, err)
	}
	return list.Items, nil
}

// boundedList is a list of at most maxHosts objects: a hostile one ends before it takes memory.
type boundedList[T any] []T

// UnmarshalJSON reads one object after the other.
func (l *boundedList[T]) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if first, err := d.Token(); err != nil || first != json.Delim('[') { // "null" is an empty list
		return err
	}
	for d.More() {
		if len(*l) == maxHosts {
			return fmt.Errorf("more than %d objects", maxHosts)
		}
		var object T
		if err := d.Decode(&object); err != nil {
			return err
		}
		*l = append(*l, object)
	}
	return nil
}

func (s *serviceObject) service(endpoints []sliceObject) snapshot.Service {
	out := snapshot.Service{
		Namespace: s.Metadata.Namespace, Name: s.Metadata.Name, Type: s.Spec.Type,
		Local: s.Spec.ExternalTrafficPolicy == "Local", InternalLocal: s.Spec.InternalTrafficPolicy == "Local",
	}
	for _, a := range s.Spec.ClusterIPs {
		out.ClusterIPs = appendAddr(out.ClusterIPs, a) // "None" is none
	}
	for _, a := range s.Status.LoadBalancer.Ingress {
		out.External = appendAddr(out.External, a.IP)
	}
	for _, a := range s.Spec.ExternalIPs {
		out.External = appendAddr(out.External, a)
	}
	for _, p := range s.Spec.Ports {
		protocol, err := packet.ParseProtocol(strings.ToLower(cmp.Or(p.Protocol, "TCP")))
		if err != nil {
			continue
		}
		port := snapshot.ServicePort{Name: p.Name, Protocol: protocol, Port: p.Port, NodePort: p.NodePort}
		seen := map[netip.AddrPort]bool{}
		for _, slice := range endpoints {
			for _, at := range slice.Ports {
				if at.Name != p.Name || !strings.EqualFold(cmp.Or(at.Protocol, "TCP"), cmp.Or(p.Protocol, "TCP")) {
					continue
				}
				for a := range slice.ready() {
					seen[netip.AddrPortFrom(a, at.Port)] = true
				}
			}
		}
		port.Endpoints = slices.SortedFunc(maps.Keys(seen), netip.AddrPort.Compare)
		out.Ports = append(out.Ports, port)
	}
	return out
}

// ready gives the addresses of a slice that take traffic. No condition means ready (discovery/v1, EndpointConditions).
func (s *sliceObject) ready() func(yield func(netip.Addr) bool) {
	return func(yield func(netip.Addr) bool) {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil && !yield(a) {
					return
				}
			}
		}
	}
}

func appendAddr(list []netip.Addr, text string) []netip.Addr {
	if a, err := netip.ParseAddr(text); err == nil {
		return append(list, a)
	}
	return list
}
