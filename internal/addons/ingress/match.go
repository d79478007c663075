package ingress

import (
	"fmt"
	"net"
	"path"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// HostMatch is how a host name found its rules.
type HostMatch int

// The ways, the first one first.
const (
	HostExact    HostMatch = iota // a rule has this name
	HostWildcard                  // a rule has * in place of the first label
	HostAny                       // a rule without a host
	HostNone                      // no rule is for this host
)

// Decision is where a request goes, and why.
type Decision struct {
	Host, Path string // as looked up: lower case and without port; without "." and ".." elements and doubled slashes
	HostMatch  HostMatch
	Rules      *Host  // nil with HostNone
	Route      *Route // nil: no route takes the path, and the request goes to the default backend of the table
	Backend    *Backend
}

// Match looks a request up, by its Host header and the path of its URL, decoded.
func (t *Table) Match(hostport, urlPath string) Decision {
	d := Decision{Host: hostOf(hostport), Path: clean(urlPath), Backend: &t.Default}
	d.Rules, d.HostMatch = t.find(d.Host)
	if d.Rules == nil {
		return d
	}
	for i := range d.Rules.Routes {
		if r := &d.Rules.Routes[i]; r.takes(d.Path) {
			d.Route, d.Backend = r, &r.Backend
			return d
		}
	}
	if f := d.Rules.Fallback; f != nil {
		d.Route, d.Backend = f, &f.Backend
	}
	return d
}

// find chooses the rules for a host as the API says: the name itself, then a wildcard for its first label, then those for every host.
func (t *Table) find(host string) (*Host, HostMatch) {
	if h := t.Hosts[host]; h != nil && host != "" && !strings.HasPrefix(host, "*") {
		return h, HostExact
	}
	if first, rest, ok := strings.Cut(host, "."); ok && first != "" {
		if h := t.Hosts["*."+rest]; h != nil {
			return h, HostWildcard
		}
	}
	if h := t.Hosts[""]; h != nil {
		return h, HostAny
	}
	return nil, HostNone
}

// hostOf returns the name in a Host header, which may have a port and a last dot.
func hostOf(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// clean returns a path as nginx compares it: dot elements resolved, slashes merged, a last slash kept.
func clean(p string) string {
	c := path.Clean("/" + p)
	if c != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		c += "/"
	}
	return c
}

// takes reports whether a route is for a path (k8s.io/api/networking/v1, PathType). ImplementationSpecific is a prefix by characters, as
// nginx's locations are.
func (r *Route) takes(p string) bool {
	switch r.Type {
	case networkingv1.PathTypeExact:
		return p == r.Path
	case networkingv1.PathTypePrefix:
		prefix := strings.TrimRight(r.Path, "/")
		rest, ok := strings.CutPrefix(p, prefix)
		return ok && (rest == "" || rest[0] == '/')
	}
	return strings.HasPrefix(p, r.Path)
}

// String gives the decision and its reasons in words.
func (d Decision) String() string {
	var b strings.Builder
	switch d.HostMatch {
	case HostExact:
		fmt.Fprintf(&b, "host %s has rules", d.Host)
	case HostWildcard:
		fmt.Fprintf(&b, "host %s is one of %s", d.Host, d.Rules.Name)
	case HostAny:
		fmt.Fprintf(&b, "host %q has no rules of its own, those without a host apply", d.Host)
	case HostNone:
		fmt.Fprintf(&b, "host %q has no rules", d.Host)
	}
	switch {
	case d.Route == nil && d.Rules != nil:
		fmt.Fprintf(&b, "; no path takes %s; the controller's default backend", d.Path)
	case d.Route == nil:
		fmt.Fprintf(&b, "; the controller's default backend")
	case d.Route == d.Rules.Fallback:
		fmt.Fprintf(&b, "; no path takes %s; default backend (%s)", d.Path, d.Route.From)
	default:
		fmt.Fprintf(&b, "; %s takes %s (%s)", d.Route.words(), d.Path, d.Route.From)
	}
	fmt.Fprintf(&b, "; to service %s port %s: ", d.Backend.Service, d.Backend.Port)
	if d.Backend.Missing != "" {
		b.WriteString(d.Backend.Missing)
		return b.String()
	}
	for i, e := range d.Backend.Endpoints {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(e.String())
	}
	return b.String()
}

// words returns the route's path in words.
func (r *Route) words() string {
	switch r.Type {
	case networkingv1.PathTypeExact:
		return "exactly " + r.Path
	case networkingv1.PathTypePrefix:
		return "prefix " + r.Path
	}
	return "all that begins with " + r.Path
}
