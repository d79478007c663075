package endpoint

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/witness"
)

// resolve returns the end that another one stands for: a pod of a Deployment and the like, a host, or what has a DNS name. Other ends are returned
// as they are. from is the sender, whose resolver is asked; the zero End where e is the sender. how says who had the address of a name.
func (w *places) resolve(e, from End) (end End, how string, err error) {
	switch e.Kind {
	case Deployment, StatefulSet, DaemonSet, Job:
		end, err = w.podOf(e)
		return end, "", err
	case HostName:
		end, err = w.host(e)
		return end, "", err
	case DNSName:
		if end, how, err = w.named(e, from); err == nil && end.PortName != "" && end.Kind != Service {
			err = fmt.Errorf("it is not a service's, whose ports have names; write the number of the port in place of %s", end.PortName)
		}
		return end, how, err
	}
	return e, "", nil
}

// hostKinds are the kinds whose hosts a name alone may mean.
var hostKinds = []Kind{Node, VM, Internet, NetNS}

// host returns the end of a host whose name stands alone.
func (w *places) host(e End) (End, error) {
	var found, known []string
	for _, kind := range hostKinds {
		end := End{Kind: kind, Name: e.Name, Port: e.Port}
		if slices.Contains(w.names, string(kind)+"/"+e.Name) || kind == Node && w.findNode(e.Name) != nil {
			found, e = append(found, end.String()), end
		}
		known = append(known, w.of(string(kind)+"/")...)
	}
	switch len(found) {
	case 1:
		return e, nil
	case 0:
		for _, n := range w.objects.Nodes {
			known = append(known, "node/"+n.Name)
		}
		slices.Sort(known)
		err := fmt.Errorf("no node, VM or internet host is called so; there are: %s", snapshot.List(slices.Compact(known)))
		if same := w.namesakes(e); len(same) > 0 {
			err = fmt.Errorf("no node, VM or internet host is called so; did you mean %s?", strings.Join(same, " or "))
		}
		return End{}, err
	}
	return End{}, fmt.Errorf("several hosts are called so; write %s", strings.Join(found, " or "))
}

// mostNamesakes is how many ends an error suggests.
const mostNamesakes = 4

// namesakes returns the pods, services and what manages pods of a name, as a user would write them with its port.
func (w *places) namesakes(e End) (all []string) {
	add := func(end End) {
		if end.Name == e.Name && len(all) < mostNamesakes {
			end.Port = e.Port
			all = append(all, end.String())
		}
	}
	for _, s := range w.objects.Services {
		add(End{Kind: Service, Namespace: s.Namespace, Name: s.Name})
	}
	for _, end := range Workloads(&w.objects) {
		add(end)
	}
	for _, p := range w.objects.Pods {
		add(End{Kind: Pod, Namespace: p.Namespace, Name: p.Name})
	}
	return all
}

// hashLabel is the Deployment controller's label of a pod (apps/v1, DefaultDeploymentUniqueLabelKey).
const hashLabel = "pod-template-hash"

// workload returns the end whose pod p is: what its controller is, or the Deployment of a ReplicaSet, which is called DEPLOYMENT-HASH. ok
// is false for all other pods.
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
	remedy := ""
	if e.Kind == Deployment || e.Kind == StatefulSet {
		remedy = fmt.Sprintf(" (if it has 0 replicas, 'kubectl -n %s scale %s/%s --replicas=1' starts one)", of.Namespace, e.Kind, e.Name)
	}
	return End{}, fmt.Errorf("it has no pods, or does not exist%s; those with pods: %s", remedy, snapshot.List(known))
}

// clusterDomain is where a cluster's DNS has its names, unless an administrator has changed that.
const clusterDomain = ".cluster.local"

// named returns what a DNS name is the name of, by the sender's resolver and its hosts file where these can be asked. Of the address that
// they have, it returns the service, node or host that has it and such a name. Where they cannot be asked or do not answer, the objects
// decide. how says who had the address.
func (w *places) named(e, from End) (end End, how string, err error) {
	end, known, err := w.known(e, from.Kind)
	switch {
	case err != nil && (w.lookUp == nil || isOutside(from.Kind)), known && from.Kind == "":
		return end, "", err
	case w.lookUp == nil && known && w.far:
		return end, "; no resolver is asked (add --resolve to ask the sender's)", nil
	case w.lookUp == nil && known:
		return end, "; no resolver is asked", nil
	case w.lookUp == nil && w.far && from.Kind != "":
		return End{}, "", errors.New("unknown name: it is not a service's or a node's; add --resolve to ask the sender's resolver, or write its address")
	case w.lookUp == nil:
		return End{}, "", errors.New("unknown name: it is not a service's, a node's or an internet host's, and no resolver can be asked; write its address")
	}
	host, addresses := w.asker(from)
	found, failed := w.lookUp(host, e.Name)
	if failed == nil {
		w.asked = lookup{host, found}
	} else {
		found.Unanswered = failed.Error()
	}
	switch none := len(found.Addresses) == 0; {
	case none && found.Unanswered != "" && known:
		return end, "; its known address is taken, because the resolver did not answer: " + found.Unanswered, nil
	case none && err != nil:
		return End{}, "", err
	case none && found.Unanswered != "":
		return End{}, "", fmt.Errorf("unknown name: %s; write its address", found.Unanswered)
	case none:
		return End{}, "", fmt.Errorf("unknown name: %s has no address for it, asked from %s; write its address", found.Server, host)
	}
	a, err := usable(found.Addresses, addresses)
	if err != nil && found.Unanswered != "" {
		err = fmt.Errorf("%w; %s", err, found.Unanswered)
	}
	if err != nil {
		return End{}, "", err
	}
	if !known || !w.hasAddress(end, a) {
		end = End{Kind: Address, Address: a, Port: e.Port, PortName: e.PortName}
	}
	return end, describe(found, a, host), nil
}

// hasAddress reports whether an end that a DNS name is known for has an address.
func (w *places) hasAddress(e End, a netip.Addr) bool {
	switch e.Kind {
	case Address:
		return e.Address == a
	case Service:
		s, err := w.findService(e)
		return err == nil && slices.Contains(s.ClusterIPs, a)
	}
	host, addresses, err := w.place(e)
	return err == nil && (slices.Contains(addresses, a) || len(addresses) == 0 && slices.Contains(w.addresses(host), a))
}

// asker returns the host whose resolver a sender uses, and the sender's addresses, as far as they are known.
func (w *places) asker(from End) (host string, addresses []netip.Addr) {
	switch from.Kind {
	case "":
	case Pod:
		host, _, addresses, _ = w.pod(from)
	case Address:
		host, addresses = w.owner(from.Address), []netip.Addr{from.Address}
	default:
		host, addresses, _ = w.place(from)
	}
	return host, addresses
}

// usable takes the first address of a family that the sender has, and IPv4 first.
func usable(all, senders []netip.Addr) (netip.Addr, error) {
	if len(all) == 0 {
		return netip.Addr{}, errors.New("it has no address; write one")
	}
	fit := slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool {
		return len(senders) > 0 && !slices.ContainsFunc(senders, func(s netip.Addr) bool { return s.Is4() == a.Is4() })
	})
	if len(fit) == 0 {
		return netip.Addr{}, fmt.Errorf("it has no address of the sender's family; it has %s", join(all))
	}
	return fit[max(0, slices.IndexFunc(fit, netip.Addr.Is4))], nil
}

// mostOthers is how many further addresses of a name are listed.
const mostOthers = 8

// describe says of a look-up who answered, and which other addresses the name has. Without a server it says nothing.
func describe(found witness.Lookup, taken netip.Addr, host string) string {
	if found.Server == "" {
		return ""
	}
	how := fmt.Sprintf(": %s has it for %s, asked from %s", found.Server, strings.TrimSuffix(found.Name, "."), host)
	if found.Server == witness.HostsFile {
		how = fmt.Sprintf(": %s of %s has it, and no resolver is asked", found.Server, host)
	}
	others := slices.DeleteFunc(slices.Clone(found.Addresses), func(a netip.Addr) bool { return a == taken })
	more := found.More + max(0, len(others)-mostOthers)
	if len(others) > 0 {
		how += "; further addresses, which are not walked: " + join(others[:min(len(others), mostOthers)])
	}
	if more > 0 {
		how += fmt.Sprintf(" and %d more", more)
	}
	if found.Unanswered != "" {
		how += "; " + found.Unanswered
	}
	return how
}

// known returns what a DNS name is the name of by the objects and hosts. ok is false where they do not tell. from is the kind of the
// sender.
func (w *places) known(e End, from Kind) (end End, ok bool, err error) {
	name, inCluster := strings.CutSuffix(strings.TrimSuffix(e.Name, "."), clusterDomain)
	labels := strings.Split(name, ".")
	switch {
	case len(labels) == 3 && labels[2] == "svc":
		return ofCluster(End{Kind: Service, Namespace: labels[1], Name: labels[0], Port: e.Port, PortName: e.PortName}, from)
	case len(labels) == 3 && labels[2] == "pod":
		a, err := netip.ParseAddr(strings.ReplaceAll(labels[0], "-", "."))
		if err != nil {
			a, err = netip.ParseAddr(strings.ReplaceAll(labels[0], "-", ":"))
		}
		if err != nil {
			return End{}, false, fmt.Errorf("unknown name; a pod's is its address with dashes, 10-0-0-1.%s.pod%s", labels[1], clusterDomain)
		}
		return ofCluster(End{Kind: Address, Address: a, Port: e.Port, PortName: e.PortName}, from)
	case inCluster || slices.Contains(labels, "svc"):
		return End{}, false, fmt.Errorf("unknown name; a service's is NAME.NAMESPACE.svc%s", clusterDomain)
	case w.findNode(name) != nil:
		return End{Kind: Node, Name: name, Port: e.Port, PortName: e.PortName}, true, nil
	case slices.Contains(w.names, "internet/"+name):
		return End{Kind: Internet, Name: name, Port: e.Port, PortName: e.PortName}, true, nil
	}
	if service := (End{Kind: Service, Namespace: labels[1], Name: labels[0], Port: e.Port, PortName: e.PortName}); len(labels) == 2 {
		if _, err := w.findService(service); err == nil {
			return ofCluster(service, from)
		}
	}
	return End{}, false, nil
}

// ofCluster refuses names of a cluster's DNS to hosts whose resolvers do not know them.
func ofCluster(e End, from Kind) (end End, ok bool, err error) {
	if isOutside(from) {
		return End{}, false, fmt.Errorf("only pods resolve names of the cluster's DNS, not %s; write %s", from, e)
	}
	return e, true, nil
}

// isOutside reports whether hosts of a kind do not ask the cluster's DNS.
func isOutside(k Kind) bool { return k == Internet || k == VM }
