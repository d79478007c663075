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

// resolve returns the end that another one stands for: a pod of a Deployment and the like, or what has a DNS name. Other ends are returned as they are.
// from is the kind of the sender, whose resolver is asked; "" where e is the sender.
func (w *places) resolve(e End, from Kind) (end End, err error) {
	switch e.Kind {
	case Deployment, StatefulSet, DaemonSet, Job:
		return w.podOf(e)
	case DNSName:
		if end, err = w.named(e, from); err == nil && end.PortName != "" && end.Kind != Service {
			return End{}, fmt.Errorf("it is not a service's, whose ports have names; write the number of the port in place of %s", end.PortName)
		}
		return end, err
	}
	return e, nil
}

// hashLabel is the Deployment controller's label of a pod (apps/v1, DefaultDeploymentUniqueLabelKey).
const hashLabel = "pod-template-hash"

// workload returns the end whose pod p is: what its controller is, or the Deployment of a ReplicaSet, which is called DEPLOYMENT-HASH. ok is
// false for all other pods.
func workload(p *snapshot.Pod) (e End, ok bool) {
	if p.Controller == nil || p.Controller.Kind == "" {
		return End{}, false
	}
	i := slices.IndexFunc(kinds, func(k kindOfEnd) bool { return k.controller == p.Controller.Kind })
	if i < 0 {
		return End{}, false
	}
	e = End{Kind: kinds[i].Kind, Namespace: p.Namespace, Name: p.Controller.Name}
	if e.Kind == Deployment {
		hash := p.Labels[hashLabel]
		e.Name, ok = strings.CutSuffix(e.Name, "-"+hash)
		return e, ok && hash != "" && e.Name != ""
	}
	return e, true
}

// Workloads returns the Deployments, StatefulSets, DaemonSets and Jobs that pods are of, sorted.
func Workloads(objects *snapshot.Objects) []End {
	var all []End
	for i := range objects.Pods {
		if e, ok := workload(&objects.Pods[i]); ok {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b End) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

// podOf returns the first pod, by name, of what manages pods that has an address.
func (w *places) podOf(e End) (End, error) {
	of := e
	of.Namespace, of.Port = cmp.Or(e.Namespace, "default"), 0
	isOf := func(p snapshot.Pod) bool { found, ok := workload(&p); return ok && found == of }
	var found []string
	for _, p := range w.objects.Pods {
		if isOf(p) && len(p.IPs) > 0 {
			found = append(found, p.Name)
		}
	}
	ownersKnown := func(p snapshot.Pod) bool { return p.Controller != nil }
	switch {
	case len(found) > 0:
		return End{Kind: Pod, Namespace: of.Namespace, Name: slices.Min(found), Port: e.Port}, nil
	case slices.ContainsFunc(w.objects.Pods, isOf):
		return End{}, errors.New("none of its pods has an address")
	case slices.ContainsFunc(w.objects.Ended, isOf):
		return End{}, errors.New("its pods have ended, and their addresses may be others' by now")
	case len(w.objects.Pods) == 0:
		return End{}, errBlind
	case !slices.ContainsFunc(w.objects.Pods, ownersKnown):
		return End{}, errors.New("the pods' owner references are unknown, as in captures by older versions; write pod/NAME")
	}
	var known []string
	for _, d := range Workloads(&w.objects) {
		if d.Kind == e.Kind {
			known = append(known, d.String())
		}
	}
	return End{}, fmt.Errorf("no pod of it; there are: %s", snapshot.List(known))
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
