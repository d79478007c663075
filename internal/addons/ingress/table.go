package ingress

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Config says which Ingresses a table is made of.
type Config struct {
	// Class is the name of the IngressClass, and the value of the older annotation kubernetes.io/ingress.class.
	Class string
	// Controller is the spec.controller of IngressClasses that are this controller's.
	Controller string
	// DefaultBackend is the Service that gets what no route takes, at the first of its ports.
	DefaultBackend types.NamespacedName
}

// Objects are what the API holds. They are read only.
type Objects struct {
	Classes   []*networkingv1.IngressClass
	Ingresses []*networkingv1.Ingress
	Services  []*corev1.Service
	Slices    []*discoveryv1.EndpointSlice
	Secrets   []*corev1.Secret // of type kubernetes.io/tls
}

// Table is a routing table. It does not change once it is built.
type Table struct {
	// Hosts are by name in lower case: "a.example.org", "*.example.org", and "" for every other host.
	Hosts map[string]*Host
	// Default gets what no route takes.
	Default Backend
	// Problems are sorted by Ingress, then in the order of its fields.
	Problems []Problem
	// Ingresses are those that the table is made of, the oldest first.
	Ingresses []types.NamespacedName
}

// Host is what happens to requests for one host name.
type Host struct {
	Name   string
	Routes []Route // the first that takes a path counts
	// Fallback gets what no route takes: the default backend of an Ingress that has rules for this host; nil: the table's.
	Fallback *Route
	// Certificate is shown to clients that ask for this host; nil: the server's own.
	Certificate *Certificate
}

// Route sends the requests for some paths of a host to a backend.
type Route struct {
	Path string
	Type networkingv1.PathType
	From Origin
	Backend
	// Redirect sends clients that come by HTTP to HTTPS (annotations ssl-redirect and force-ssl-redirect of nginx.ingress.kubernetes.io).
	Redirect bool
}

// Origin is the place of a route in the API.
type Origin struct {
	Ingress types.NamespacedName
	Field   string // spec.rules[0].http.paths[1]
}

func (o Origin) String() string { return o.Ingress.String() + " " + o.Field }

// Backend is one port of a Service, with the endpoints that are ready.
type Backend struct {
	Service types.NamespacedName
	Port    string // as the Ingress names it: a number or a name
	// Endpoints are the pods' addresses, sorted: requests go to them, and not to the Service's ClusterIP.
	Endpoints []netip.AddrPort
	// Missing says why there are no endpoints; "" when there are.
	Missing string
	// Known is true when the Service has the port.
	Known bool
}

// Name returns the backend as ingress-nginx's access log has it: NAMESPACE-SERVICE-PORT.
func (b Backend) Name() string {
	return b.Service.Namespace + "-" + b.Service.Name + "-" + b.Port
}

// Certificate is what a Secret of type kubernetes.io/tls holds.
type Certificate struct {
	Secret types.NamespacedName
	Pair   tls.Certificate
}

// Problem is something in an Ingress that the table does not do.
type Problem struct {
	Ingress types.NamespacedName
	Field   string
	Message string
	// Passing is true of what ends without a change of the Ingress, such as a Service whose pods are not ready yet.
	Passing bool
}

func (p Problem) String() string { return p.Ingress.String() + " " + p.Field + ": " + p.Message }

// Build makes the table.
func Build(c Config, o Objects) *Table {
	b := builder{
		config: c, table: &Table{Hosts: map[string]*Host{}}, backends: newBackends(o), taken: map[routeKey]Origin{},
		secrets:   map[types.NamespacedName]*corev1.Secret{},
		certified: map[string]Origin{},
	}
	for _, s := range o.Secrets {
		b.secrets[nameOf(s)] = s
	}
	b.table.Default = b.backends.first(c.DefaultBackend)
	ours := slices.DeleteFunc(slices.Clone(o.Ingresses), func(i *networkingv1.Ingress) bool { return !c.selects(i, o.Classes) })
	slices.SortFunc(ours, older)
	for _, i := range ours {
		b.table.Ingresses = append(b.table.Ingresses, nameOf(i))
		b.certificates(i) // before the routes, which redirect to HTTPS where there is a certificate
	}
	for _, i := range ours {
		b.annotations(i)
		b.rules(i)
	}
	for _, h := range b.table.Hosts {
		h.finish()
	}
	slices.SortStableFunc(b.table.Problems, func(a, b Problem) int { return cmp.Compare(a.Ingress.String(), b.Ingress.String()) })
	return b.table
}

// older puts the Ingress first that was made first: it keeps what both ask for.
func older(a, b *networkingv1.Ingress) int {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return cmp.Compare(nameOf(a).String(), nameOf(b).String())
}

// annotationClass chose the controller before spec.ingressClassName, and where it is there it still does.
const annotationClass = "kubernetes.io/ingress.class"

// selects reports whether an Ingress is for this controller, by its annotation or, without one, by its IngressClass.
func (c Config) selects(i *networkingv1.Ingress, classes []*networkingv1.IngressClass) bool {
	if class, ok := i.Annotations[annotationClass]; ok {
		return class == c.Class
	}
	if i.Spec.IngressClassName == nil {
		return false
	}
	return slices.ContainsFunc(classes, func(class *networkingv1.IngressClass) bool {
		return class.Name == *i.Spec.IngressClassName && class.Spec.Controller == c.Controller
	})
}

type object interface {
	GetNamespace() string
	GetName() string
}

func nameOf(o object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

type builder struct {
	config    Config
	table     *Table
	backends  *backends
	secrets   map[types.NamespacedName]*corev1.Secret
	taken     map[routeKey]Origin
	certified map[string]Origin // hosts that have a certificate
}

type routeKey struct {
	host, path string
	exact      bool
}

func (b *builder) problem(i *networkingv1.Ingress, field, format string, a ...any) {
	b.table.Problems = append(b.table.Problems, Problem{Ingress: nameOf(i), Field: field, Message: fmt.Sprintf(format, a...)})
}

func (b *builder) host(name string) *Host {
	name = strings.ToLower(name)
	h := b.table.Hosts[name]
	if h == nil {
		h = &Host{Name: name}
		b.table.Hosts[name] = h
	}
	return h
}

// rules adds the routes of one Ingress.
func (b *builder) rules(i *networkingv1.Ingress) {
	fallback := b.fallback(i)
	if len(i.Spec.Rules) == 0 && fallback != nil {
		b.setFallback(i, "", fallback)
	}
	for n, rule := range i.Spec.Rules {
		host := b.host(rule.Host)
		if rule.HTTP != nil {
			for m := range rule.HTTP.Paths {
				b.path(i, host, fmt.Sprintf("spec.rules[%d].http.paths[%d]", n, m), &rule.HTTP.Paths[m])
			}
		}
		if fallback != nil {
			b.setFallback(i, host.Name, fallback)
		}
	}
}

func (b *builder) fallback(i *networkingv1.Ingress) *Route {
	if i.Spec.DefaultBackend == nil {
		return nil
	}
	backend, ok := b.backend(i, "spec.defaultBackend", i.Spec.DefaultBackend)
	if !ok {
		return nil
	}
	return &Route{Path: "/", Type: networkingv1.PathTypePrefix, From: Origin{nameOf(i), "spec.defaultBackend"}, Backend: backend}
}

// setFallback gives a host a default backend; the older Ingress's stays.
func (b *builder) setFallback(i *networkingv1.Ingress, host string, fallback *Route) {
	h := b.host(host)
	if h.Fallback == nil {
		route := *fallback
		route.Redirect = b.redirects(i, host)
		h.Fallback = &route
		return
	}
	if h.Fallback.From != fallback.From {
		b.problem(i, fallback.From.Field, "%s has a default backend by %s already, which is older", hostWord(host), h.Fallback.From)
	}
}

func (b *builder) path(i *networkingv1.Ingress, host *Host, field string, p *networkingv1.HTTPIngressPath) {
	backend, ok := b.backend(i, field+".backend", &p.Backend)
	if !ok {
		return
	}
	route := Route{Path: p.Path, Type: networkingv1.PathTypeImplementationSpecific, From: Origin{nameOf(i), field}, Backend: backend,
		Redirect: b.redirects(i, host.Name)}
	if p.PathType != nil {
		route.Type = *p.PathType
	}
	if route.Path == "" {
		route.Path = "/"
	}
	key := routeKey{host.Name, route.Path, route.Type == networkingv1.PathTypeExact}
	if route.Type == networkingv1.PathTypePrefix {
		key.path = strings.TrimRight(route.Path, "/")
	}
	if first, ok := b.taken[key]; ok {
		b.problem(i, field, "%s of %s goes where %s says, which is older", route.Path, hostWord(host.Name), first)
		return
	}
	b.taken[key] = route.From
	host.Routes = append(host.Routes, route)
}

func hostWord(host string) string {
	if host == "" {
		return "every other host"
	}
	return "host " + host
}

// backend finds what an Ingress's backend names. What it names may be missing: then requests are answered with 503.
func (b *builder) backend(i *networkingv1.Ingress, field string, spec *networkingv1.IngressBackend) (Backend, bool) {
	if spec.Service == nil {
		b.problem(i, field, "only a Service can be a backend here, not another resource; write service.name and service.port")
		return Backend{}, false
	}
	port := spec.Service.Port.Name
	if port == "" {
		port = fmt.Sprint(spec.Service.Port.Number)
	}
	backend := b.backends.find(types.NamespacedName{Namespace: i.Namespace, Name: spec.Service.Name}, port)
	if backend.Missing != "" {
		b.problem(i, field, "%s; requests get 503 until there is one", backend.Missing)
		b.table.Problems[len(b.table.Problems)-1].Passing = backend.Known
	}
	return backend, true
}

// finish puts a host's routes into the order in which they are tried: exact paths, then longer before shorter ones, and of two equally long
// ones the path by elements (Prefix) before that by characters.
func (h *Host) finish() {
	rank := func(r *Route) int {
		return slices.Index([]networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypePrefix,
			networkingv1.PathTypeImplementationSpecific}, r.Type)
	}
	slices.SortStableFunc(h.Routes, func(a, b Route) int {
		if a.exact() != b.exact() {
			return -cmp.Compare(btoi(a.exact()), btoi(b.exact()))
		}
		return cmp.Or(-cmp.Compare(len(a.Path), len(b.Path)), cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Path, b.Path))
	})
}

func (r *Route) exact() bool { return r.Type == networkingv1.PathTypeExact }

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
