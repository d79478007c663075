package cluster

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

var (
	clusterName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$`)
	poolName      = regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`)
	azureName     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?$`)
	resourceGroup = regexp.MustCompile(`^[A-Za-z0-9_.()-]{0,89}[A-Za-z0-9_()-]$`)
	location      = regexp.MustCompile(`^[a-z0-9]{1,40}$`)
	subscription  = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	zoneName      = regexp.MustCompile(`^[123]$`)
	vmSize        = regexp.MustCompile(`^[A-Za-z0-9_]{1,60}$`)
	dnsLabel      = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// special are the ranges that no VNet, service or pod may overlap, and why.
var special = []struct {
	prefix netip.Prefix
	what   string
}{
	{InternetRange, "the range of the lab's internet hosts"},
	{PublicPool, "the lab's pool of public addresses"},
	{wireServer, "the address of Azure's platform"},
	{netip.MustParsePrefix("169.254.0.0/16"), "the link-local range"},
	{netip.MustParsePrefix("127.0.0.0/8"), "the loopback range"},
	{netip.MustParsePrefix("0.0.0.0/8"), "the range of \"this network\""},
	{netip.MustParsePrefix("224.0.0.0/3"), "the multicast and reserved range"},
}

// Validate gives everything that is wrong with c, defaults filled in. With apps given, the application of a VM or an internet host must be
// one of them.
func (c *Cluster) Validate(apps ...string) Errors {
	v := &validator{c: c, apps: apps}
	v.header()
	v.network()
	v.azure()
	v.pools()
	v.ranges()
	v.machines()
	v.unbuilt()
	v.images()
	v.virtualNode()
	v.nodeOptions()
	v.overlay()
	return v.errs
}

type validator struct {
	c    *Cluster
	apps []string
	errs Errors
}

func (v *validator) header() {
	c := v.c
	if c.APIVersion != APIVersion {
		v.errs.add("apiVersion", "write "+APIVersion, "unknown version %q", c.APIVersion)
	}
	if c.Kind != Kind {
		v.errs.add("kind", "write "+Kind, "unknown kind %q", c.Kind)
	}
	v.name("metadata.name", c.Metadata.Name, clusterName, "1 to 63 letters, digits, - and _, a letter or digit at both ends")
	if k := c.Spec.KubernetesVersion; k != SupportedKubernetes {
		v.errs.add("spec.kubernetesVersion",
			"write \""+SupportedKubernetes+"\", or leave it out; spec.serviceProxy.rules chooses the rule set of an older version",
			"the control plane is that of %s, not %s", SupportedKubernetes, k)
	}
}

// name checks s against a pattern.
func (v *validator) name(path, s string, pattern *regexp.Regexp, rule string) {
	switch {
	case s == "":
		v.errs.add(path, "write "+rule, "missing")
	case !pattern.MatchString(s):
		v.errs.add(path, "write "+rule, "%q is not possible", s)
	}
}

// choice checks that value is one of the known ones.
func choice[T ~string](v *validator, path string, value T, known ...T) {
	if slices.Contains(known, value) {
		return
	}
	words := make([]string, len(known))
	for i, k := range known {
		words[i] = string(k)
	}
	remedy := suggest(string(value), words, "write one of ")
	if len(words) == 1 {
		remedy = "write " + words[0]
	}
	v.errs.add(path, remedy, "unknown value %q; this version has %s", value, strings.Join(words, ", "))
}

// prefix checks one range by itself, and reports whether it can be compared with others. One that is not aligned stands for the range that
// it lies in.
func (v *validator) prefix(path string, p netip.Prefix, shortest, longest int) bool {
	switch {
	case !p.IsValid():
		v.errs.add(path, "write a range such as 10.13.0.0/16", "missing")
	case !p.Addr().Is4():
		v.errs.add(path, "write an IPv4 range", "%s: IPv6 is not built yet", p)
	case p.Masked() != p:
		v.errs.add(path, "write "+p.Masked().String(), "%s is not aligned: it has bits set after the first %d", p, p.Bits())
		return true
	case p.Bits() < shortest || p.Bits() > longest:
		v.errs.add(path, fmt.Sprintf("write a range of /%d to /%d", shortest, longest), "%s has a length that is not possible here", p)
	default:
		return true
	}
	return false
}

// azureName checks a resource's name, and that no other of its kind has it: Azure's names know no case.
func (v *validator) azureName(path, name string, taken map[string]string) {
	v.name(path, name, azureName, "1 to 64 letters, digits, -, _ and ., a letter or digit first")
	v.unique(path, strings.ToLower(name), taken)
}

func (v *validator) unique(path, name string, taken map[string]string) {
	if first, ok := taken[name]; ok && name != "" {
		v.errs.add(path, "write another name", "%q is already the name of %s", name, strings.TrimSuffix(first, ".name"))
		return
	}
	taken[name] = path
}

func (v *validator) checkRange(path string, n, least, most int) {
	if n < least || n > most {
		v.errs.add(path, fmt.Sprintf("write a number from %d to %d", least, most), "%d is not possible", n)
	}
}

// namedRange is a range and where it stands.
type namedRange struct {
	path   string
	prefix netip.Prefix
}

// ranges checks that VNets, services and pods lie apart from each other and from the special ranges.
func (v *validator) ranges() {
	var all []namedRange
	for i, n := range v.c.Spec.Azure.VNets {
		for j, p := range n.AddressPrefixes {
			at := fmt.Sprintf("spec.azure.vnets[%d].addressPrefixes[%d]", i, j)
			if v.prefix(at, p, 8, 29) {
				all = append(all, namedRange{at, p})
			}
		}
	}
	n := v.c.Spec.Network
	if usable(n.ServiceCIDR) {
		all = append(all, namedRange{"spec.network.serviceCIDR", n.ServiceCIDR})
	}
	ranged := n.Plugin == PluginKubenet || n.IsOverlay() || n.Plugin == PluginNone && n.PodCIDR.IsValid()
	if ranged && v.prefix("spec.network.podCIDR", n.PodCIDR, 8, NodePodBits) {
		all = append(all, namedRange{"spec.network.podCIDR", n.PodCIDR})
	}
	for i, r := range all {
		for _, s := range special {
			if r.prefix.Overlaps(s.prefix) {
				v.errs.add(r.path, "write a private range (RFC 1918)", "%s overlaps %s, %s", r.prefix, s.prefix, s.what)
			}
		}
		for _, other := range all[:i] {
			if r.prefix.Overlaps(other.prefix) {
				v.errs.add(r.path, "write a range that is free", "%s overlaps %s, %s", r.prefix, other.path, other.prefix)
			}
		}
	}
}

// unbuilt refuses what cluster.yaml can say and this version does not make.
func (v *validator) unbuilt() {
	for i, a := range v.c.Spec.Addons {
		path := fmt.Sprintf("spec.addons[%d]", i)
		if a == "virtual-node" {
			v.errs.add(path, "leave it out and write spec.virtualNode.enabled: true", "the virtual node has a field of its own")
			continue
		}
		choice(v, path, a, AddonHTTPRouting)
	}
}
