package endpoint

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/snapshot"
)

// resolve returns the end that another one stands for: a pod of a Deployment, or what has a DNS name. Other ends are returned as they are.
// from is the kind of the sender, whose resolver is asked; "" where e is the sender.
func (w *places) resolve(e End, from Kind) (end End, err error) {
	switch e.Kind {
	case Deployment:
		return w.podOfDeployment(e)
	case DNSName:
		if end, err = w.named(e, from); err == nil && end.PortName != "" && end.Kind != Service {
			return End{}, fmt.Errorf("it is not a service's, whose ports have names; write the number of the port in place of %s", end.PortName)
		}
		return end, err
	}
	return e, nil
}

// hashLabel is the Deployment controller's label of a pod (apps/v1, DefaultDeploymentUniqueLabelKey). A pod is called
// DEPLOYMENT-HASH-SUFFIX.
const hashLabel = "pod-template-hash"

// suffixSize is the length of a generated pod name's suffix, and maxBase that of what stands before it (apiserver: storage/names).
const (
	suffixSize = 5
	maxBase    = 63 - suffixSize
)

// isPodOf reports whether a pod is one of a Deployment's, by its name and the hash in its labels.
func isPodOf(p *snapshot.Pod, deployment string) bool {
	hash := p.Labels[hashLabel]
	base := deployment + "-" + hash + "-"
	base = base[:min(len(base), maxBase)]
	return hash != "" && len(p.Name) == len(base)+suffixSize && strings.HasPrefix(p.Name, base)
}

// Deployments are the Deployments that pods are of, by the pods' names, sorted.
func Deployments(objects *snapshot.Objects) []End {
	var all []End
	for i := range objects.Pods {
		p := &objects.Pods[i]
		if hash := p.Labels[hashLabel]; hash != "" && len(p.Name) > suffixSize {
			if name, ok := strings.CutSuffix(p.Name[:len(p.Name)-suffixSize], "-"+hash+"-"); ok && name != "" {
				all = append(all, End{Kind: Deployment, Namespace: p.Namespace, Name: name})
			}
		}
	}
	slices.SortFunc(all, func(a, b End) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

// podOfDeployment is the first pod of a Deployment that has an address.
func (w *places) podOfDeployment(e End) (End, error) {
	namespace := cmp.Or(e.Namespace, "default")
	var found []string
	exists := false
	for i := range w.objects.Pods {
		if p := &w.objects.Pods[i]; p.Namespace == namespace && isPodOf(p, e.Name) {
			if exists = true; len(p.IPs) > 0 {
				found = append(found, p.Name)
			}
		}
	}
	switch {
	case len(found) > 0:
		return End{Kind: Pod, Namespace: namespace, Name: slices.Min(found), Port: e.Port}, nil
	case exists:
		return End{}, errors.New("none of its pods has an address")
	case len(w.objects.Pods) == 0:
		return End{}, errBlind
	}
	var known []string
	for _, d := range Deployments(&w.objects) {
		known = append(known, d.String())
	}
	return End{}, fmt.Errorf("no pod of such a Deployment; there are: %s", snapshot.List(known))
}

// clusterDomain is where a cluster's DNS has its names, unless an administrator has changed that.
const clusterDomain = ".cluster.local"

// named is what a DNS name is the name of: a service or a pod by the names of a cluster's DNS, a node, a host of the internet, or what the
// resolver at hand says. from is the kind of the end that asks for it, "" where that is not known.
func (w *places) named(e End, from Kind) (End, error) {
	name, inCluster := strings.CutSuffix(e.Name, clusterDomain)
	labels := strings.Split(name, ".")
	switch {
	case len(labels) == 3 && labels[2] == "svc":
		return w.ofCluster(End{Kind: Service, Namespace: labels[1], Name: labels[0], Port: e.Port, PortName: e.PortName}, from)
	case len(labels) == 3 && labels[2] == "pod":
		a, err := netip.ParseAddr(strings.ReplaceAll(labels[0], "-", "."))
		if err != nil {
			a, err = netip.ParseAddr(strings.ReplaceAll(labels[0], "-", ":"))
		}
		if err != nil {
			return End{}, fmt.Errorf("unknown name; a pod's is its address with dashes, 10-0-0-1.%s.pod%s", labels[1], clusterDomain)
		}
		return w.ofCluster(End{Kind: Address, Address: a, Port: e.Port, PortName: e.PortName}, from)
	case inCluster || slices.Contains(labels, "svc"):
		return End{}, fmt.Errorf("unknown name; a service's is NAME.NAMESPACE.svc%s", clusterDomain)
	case w.findNode(e.Name) != nil:
		return End{Kind: Node, Name: e.Name, Port: e.Port, PortName: e.PortName}, nil
	case slices.Contains(w.names, "internet/"+e.Name):
		return End{Kind: Internet, Name: e.Name, Port: e.Port, PortName: e.PortName}, nil
	}
	if service := (End{Kind: Service, Namespace: labels[1], Name: labels[0], Port: e.Port, PortName: e.PortName}); len(labels) == 2 {
		if _, err := w.findService(service); err == nil {
			return w.ofCluster(service, from)
		}
	}
	if w.lookUp == nil {
		return End{}, errors.New("unknown name: it is not a service's, a node's or an internet host's, and no resolver can be asked; write its address")
	}
	addresses, err := w.lookUp(e.Name)
	if err != nil {
		return End{}, fmt.Errorf("unknown name: %w; write its address", err)
	}
	if len(addresses) == 0 {
		return End{}, errors.New("it has no address; write one")
	}
	return End{Kind: Address, Address: addresses[0], Port: e.Port, PortName: e.PortName}, nil
}

// ofCluster refuses names of a cluster's DNS to hosts whose resolvers do not know them.
func (w *places) ofCluster(e End, from Kind) (End, error) {
	if from == Internet || from == VM {
		return End{}, fmt.Errorf("only pods resolve names of the cluster's DNS, not %s; write %s", from, e)
	}
	return e, nil
}
