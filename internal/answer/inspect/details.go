package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// Section is a list of one kind of things that a machine has.
type Section struct {
	Name    string     `json:"name"`
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
	More    int        `json:"more,omitempty"` // rows that are left out
	// Unknown says why the list may lack something; "" where it is whole.
	Unknown string `json:"unknown,omitempty"`
}

// mostRows limits the rows of a section.
const mostRows = 100

func (s *Section) add(cells ...string) {
	if len(s.Rows) == mostRows {
		s.More++
		return
	}
	for i := range cells {
		cells[i] = termsafe.Text(cells[i])
	}
	s.Rows = append(s.Rows, cells)
}

// unknown returns why some parts of a machine's state may lack something; "" where they are whole.
func unknown(h *snapshot.Host, parts ...snapshot.Part) string {
	var reasons []string
	for _, p := range parts {
		for _, why := range []string{h.Unread[p], h.Missing[p], h.Partial[p]} {
			if why != "" {
				reasons = append(reasons, string(p)+": "+why)
			}
		}
	}
	return termsafe.Text(strings.Join(reasons, "; "))
}

// UnknownRules returns why a machine may have other rules than those that are known; "" if all are known.
func UnknownRules(h *snapshot.Host) string {
	return unknown(h, snapshot.Rules, snapshot.RulesIPv6, snapshot.NFT, snapshot.Bridge)
}

// Machine returns what is known of a machine's network. Names of addresses come from owners.
func Machine(h *snapshot.Host, owners *explain.Owners) []Section {
	if h == nil || h.FIB == nil {
		return nil
	}
	all := []Section{links(h), routes(h), policies(h), neighbours(h, owners), connections(h, owners), listeners(h), ruleCounts(h)}
	return slices.DeleteFunc(all, func(s Section) bool { return len(s.Rows) == 0 && s.Unknown == "" })
}

func section(name, why string, columns ...string) Section {
	return Section{Name: name, Columns: columns, Rows: [][]string{}, Unknown: why}
}

// links lists interfaces with their addresses, and what is at the other end.
func links(h *snapshot.Host) Section {
	s := section("interfaces", unknown(h, snapshot.Links, snapshot.Addresses, snapshot.Wires), "name", "addresses", "state", "leads to")
	known := map[string]bool{}
	addresses := func(link string) string {
		var all []string
		for _, a := range h.FIB.Addresses {
			if a.Link == link {
				all = append(all, a.Prefix.String())
			}
		}
		return strings.Join(all, " ")
	}
	for i := range h.FIB.Links {
		l := &h.FIB.Links[i]
		known[l.Name] = true
		state := "down"
		if l.HasCarrier() {
			state = "up"
		}
		if l.MTU > 0 {
			state += fmt.Sprintf(", MTU %d", l.MTU)
		}
		var to []string
		if p, ok := h.Peer(l.Name); ok {
			to = append(to, p.Host+" "+p.PeerLink)
		}
		if l.Master != "" {
			to = append(to, "port of "+l.Master)
		}
		if l.Kind != "" {
			state += ", " + l.Kind
		}
		s.add(l.Name, addresses(l.Name), state, strings.Join(to, ", "))
	}
	for _, a := range h.FIB.Addresses { // of a text without links
		if !known[a.Link] {
			known[a.Link] = true
			s.add(a.Link, addresses(a.Link), "unknown", "")
		}
	}
	return s
}

// routes lists the routes that the kernel does not make of addresses by itself.
func routes(h *snapshot.Host) Section {
	s := section("routes", unknown(h, snapshot.Routes), "destination", "by", "table")
	for i := range h.FIB.Routes {
		r := &h.FIB.Routes[i]
		if r.Table == fib.TableLocal {
			continue
		}
		by := r.Type
		if r.Type == "unicast" || r.Type == "" {
			by = nexthop(r.Gateway, r.Link)
			for _, n := range r.Nexthops {
				by = strings.TrimPrefix(by+", "+nexthop(n.Gateway, n.Link), ", ")
			}
		}
		if r.Source.IsValid() {
			by += " from " + r.Source.String()
		}
		if r.Metric > 0 {
			by += fmt.Sprintf(" metric %d", r.Metric)
		}
		s.add(destination(r.Destination), by, tableName(r.Table, r.TableName))
	}
	return s
}

func destination(p netip.Prefix) string {
	if p.IsValid() && p.Bits() == 0 {
		return "default (" + p.String() + ")"
	}
	return p.String()
}

func nexthop(gateway netip.Addr, link string) string {
	if gateway.IsValid() {
		return strings.TrimSpace(gateway.String() + " " + link)
	}
	return link
}

func tableName(number int, name string) string {
	names := map[int]string{fib.TableMain: "main", fib.TableLocal: "local", fib.TableDefault: "default"}
	return cmp.Or(name, names[number], strconv.Itoa(number))
}

// policies lists the policy rules, in the order in which the kernel asks them, unless they are those that every machine has.
func policies(h *snapshot.Host) Section {
	s := section("policy rules", unknown(h, snapshot.Policy), "priority", "for", "does")
	usual := true
	for i := range h.FIB.Rules {
		r := &h.FIB.Rules[i]
		usual = usual && slices.Contains([]int{0, 32766, 32767}, r.Priority)
		does := r.Action
		switch r.Action {
		case "lookup", "":
			does = "table " + tableName(r.Table, r.TableName)
		case "goto":
			does = fmt.Sprintf("goto %d", r.Goto)
		}
		s.add(strconv.Itoa(r.Priority), selector(r), does)
	}
	if usual && s.Unknown == "" {
		return Section{}
	}
	return s
}

// selector returns which packets a policy rule is for.
func selector(r *fib.Rule) string {
	if r.Text != "" {
		return r.Text
	}
	var all []string
	add := func(name, value string) { all = append(all, name+" "+value) }
	if r.From.IsValid() {
		add("from", r.From.String())
	}
	if r.To.IsValid() {
		add("to", r.To.String())
	}
	if r.In != "" {
		add("iif", r.In)
	}
	if r.Out != "" {
		add("oif", r.Out)
	}
	if r.Mask != 0 {
		add("fwmark", fmt.Sprintf("%#x/%#x", r.Mark, r.Mask))
	}
	if r.Protocol != 0 {
		add("ipproto", r.Protocol.String())
	}
	text := strings.Join(all, " ")
	if r.Not {
		text = "not " + text
	}
	if text == "" {
		text = "all"
	}
	if r.IPv6 {
		text += " (IPv6)"
	}
	return text
}

func neighbours(h *snapshot.Host, owners *explain.Owners) Section {
	s := section("neighbours", unknown(h, snapshot.Neighbours), "address", "MAC", "interface", "state")
	for _, n := range h.FIB.Neighbours {
		if n.Address.IsMulticast() || strings.EqualFold(n.State, "NOARP") {
			continue
		}
		state := strings.ToLower(n.State)
		if n.Proxy {
			state = "proxy"
		}
		s.add(named(n.Address, owners), n.MAC.String(), n.Link, state)
	}
	return s
}

// named returns an address with its owner's name.
func named(a netip.Addr, owners *explain.Owners) string {
	if owner, ok := owners.Address(a, 0, 0); ok {
		return a.String() + "  " + owner.String()
	}
	return a.String()
}

// connections lists conntrack's entries, and what was translated.
func connections(h *snapshot.Host, owners *explain.Owners) Section {
	s := section("connections", unknown(h, snapshot.Flows), "protocol", "from", "to", "state", "answers come")
	if h.Flows == nil {
		return s
	}
	for i := range h.Flows.Flows {
		f := &h.Flows.Flows[i]
		answers := "as they go"
		if want := f.Original.Reply(); f.Reply != want {
			answers = f.Reply.SourceEnd() + " → " + f.Reply.DestinationEnd()
		}
		state := strings.ToLower(f.State)
		if f.Status&packet.SeenReply == 0 {
			state = strings.TrimSpace(state + " unanswered")
		}
		owner := ""
		if o, ok := owners.Address(f.Original.Destination, f.Original.Protocol, f.Original.DestinationPort.Number); ok {
			owner = "  " + o.String()
		}
		s.add(f.Original.Protocol.String(), f.Original.SourceEnd(), f.Original.DestinationEnd()+owner, state, answers)
	}
	return s
}

func listeners(h *snapshot.Host) Section {
	s := section("listening", unknown(h, snapshot.Listeners), "protocol", "address", "process")
	for _, l := range h.Listeners {
		s.add(l.Protocol.String(), l.Local.String(), l.Process)
	}
	return s
}

// ruleCounts counts the rules of each table.
func ruleCounts(h *snapshot.Host) Section {
	s := section("rules", UnknownRules(h), "table", "chains", "rules")
	for _, t := range ordered(h) {
		n := 0
		for _, c := range t.Chains {
			n += len(c.Rules)
		}
		if n > 0 {
			s.add(t.Family.String()+" "+t.Name, strconv.Itoa(len(t.Chains)), strconv.Itoa(n))
		}
	}
	return s
}

// Object is a Kubernetes object, with the command that prints all of it.
type Object struct {
	Kind    string     `json:"kind"`
	Name    string     `json:"name"`
	Fields  [][]string `json:"fields"` // name and value
	Command string     `json:"command,omitempty"`
}

func (o *Object) add(name, value string) {
	if value != "" {
		o.Fields = append(o.Fields, []string{name, termsafe.Text(value)})
	}
}

// mostFields limits the fields of one object.
const mostFields = 60

func (o *Object) addAll(name string, values []string) {
	for i, v := range values {
		if len(o.Fields) >= mostFields {
			o.add("", fmt.Sprintf("and %d more", len(values)-i))
			return
		}
		o.add(name, v)
	}
}

// KubernetesObject returns the object that a box of a picture stands for; nil where it stands for none, or the object is not known. id is
// as [picture.Box] has it: "pod/NAMESPACE/NAME", "node/NAME", "frontend/NAMESPACE/NAME/ADDRESS".
func KubernetesObject(objects *snapshot.Objects, id string) *Object {
	kind, rest, _ := strings.Cut(id, "/")
	parts := strings.Split(rest, "/")
	switch {
	case kind == "pod" && len(parts) == 2:
		i := slices.IndexFunc(objects.Pods, func(p snapshot.Pod) bool { return p.Namespace == parts[0] && p.Name == parts[1] })
		if i >= 0 {
			return podObject(objects, &objects.Pods[i])
		}
	case kind == "node":
		i := slices.IndexFunc(objects.Nodes, func(n snapshot.Node) bool { return n.Name == rest })
		if i >= 0 {
			return nodeObject(objects, &objects.Nodes[i])
		}
	case kind == "frontend" && len(parts) == 3:
		i := slices.IndexFunc(objects.Services, func(s snapshot.Service) bool { return s.Namespace == parts[0] && s.Name == parts[1] })
		if i >= 0 {
			return serviceObject(objects, &objects.Services[i])
		}
	}
	return nil
}

func strs[T fmt.Stringer](all []T) []string {
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = v.String()
	}
	return texts
}

func podObject(objects *snapshot.Objects, p *snapshot.Pod) *Object {
	o := &Object{Kind: "Pod", Name: termsafe.Text(p.Namespace + "/" + p.Name)}
	o.Command = command("pod", p.Namespace, p.Name)
	o.addAll("address", strs(p.IPs))
	o.add("node", p.Node)
	if p.HostNetwork {
		o.add("hostNetwork", "true")
	}
	if p.Controller != nil && p.Controller.Name != "" {
		o.add("managed by", p.Controller.Kind+" "+p.Controller.Name)
	}
	o.add("sandbox", p.Sandbox)
	for i := range objects.Services {
		s := &objects.Services[i]
		for _, port := range s.Ports {
			if slices.ContainsFunc(port.Endpoints, func(e netip.AddrPort) bool { return slices.Contains(p.IPs, e.Addr()) }) {
				o.add("endpoint of", fmt.Sprintf("%s/%s port %d/%s", s.Namespace, s.Name, port.Port, strings.ToLower(port.Protocol.String())))
			}
		}
	}
	for i := range objects.NetworkPolicies {
		if n := &objects.NetworkPolicies[i]; n.Namespace == p.Namespace && n.Selects(p) {
			o.add("NetworkPolicy", n.Name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
		o.add("label", key+"="+p.Labels[key])
	}
	return o
}

func nodeObject(objects *snapshot.Objects, n *snapshot.Node) *Object {
	o := &Object{Kind: "Node", Name: termsafe.Text(n.Name), Command: command("node", "", n.Name)}
	o.addAll("address", strs(n.IPs))
	o.addAll("pod CIDR", strs(n.PodCIDRs))
	o.add("provider ID", n.ProviderID)
	pods := 0
	for i := range objects.Pods {
		if objects.Pods[i].Node == n.Name {
			pods++
		}
	}
	o.add("pods", strconv.Itoa(pods))
	return o
}

func serviceObject(objects *snapshot.Objects, s *snapshot.Service) *Object {
	o := &Object{Kind: "Service", Name: termsafe.Text(s.Namespace + "/" + s.Name), Command: command("service", s.Namespace, s.Name)}
	o.add("type", s.Type)
	o.addAll("cluster IP", strs(s.ClusterIPs))
	o.addAll("external address", strs(s.External))
	policy := map[bool]string{true: "Local", false: "Cluster"}
	o.add("externalTrafficPolicy", policy[s.Local])
	o.add("internalTrafficPolicy", policy[s.InternalLocal])
	pods := map[netip.Addr]string{}
	for i := range objects.Pods {
		for _, a := range objects.Pods[i].IPs {
			pods[a] = "  pod " + objects.Pods[i].Name
		}
	}
	for _, p := range s.Ports {
		text := fmt.Sprintf("%d/%s", p.Port, strings.ToLower(p.Protocol.String()))
		if p.NodePort != 0 {
			text += fmt.Sprintf(", node port %d", p.NodePort)
		}
		o.add("port", text)
		endpoints := make([]string, len(p.Endpoints))
		for i, e := range p.Endpoints {
			endpoints[i] = e.String() + pods[e.Addr()]
		}
		o.addAll("endpoint", endpoints)
	}
	return o
}

// command returns the kubectl command that prints an object; "" where a name is not one that Kubernetes has.
func command(kind, namespace, name string) string {
	if !isName(name) || !isName(namespace) && namespace != "" {
		return ""
	}
	text := "kubectl get " + kind + " " + name + " -o yaml"
	if namespace != "" {
		text += " -n " + namespace
	}
	return text
}

// isName reports whether a text is a name of Kubernetes, which a shell takes as one word (RFC 1123).
func isName(s string) bool {
	return s != "" && s[0] != '-' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}
