package ippool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Pool is what counts of an IPPool (crd.projectcalico.org/v1).
type Pool struct {
	Name        string
	CIDR        netip.Prefix // masked; invalid when the object has none that can be used
	NATOutgoing bool
}

// poolSpec is the spec of the object (api/pkg/apis/projectcalico/v3/ippool.go).
type poolSpec struct {
	CIDR              string   `json:"cidr"`
	VXLANMode         string   `json:"vxlanMode"`
	IPIPMode          string   `json:"ipipMode"`
	NATOutgoing       bool     `json:"natOutgoing"`
	Disabled          bool     `json:"disabled"`
	DisableBGPExport  bool     `json:"disableBGPExport"`
	BlockSize         *int     `json:"blockSize"`
	NodeSelector      string   `json:"nodeSelector"`
	NamespaceSelector string   `json:"namespaceSelector"`
	AllowedUses       []string `json:"allowedUses"`
	AssignmentMode    string   `json:"assignmentMode"`

	// Calico keeps these two for objects of its first API and refuses them in new ones.
	IPIP          json.RawMessage `json:"ipip"`
	NATOutgoingV1 bool            `json:"nat-outgoing"`
}

// ParsePool reads the spec of an IPPool, in JSON. Like felix it makes the best of what Calico's validation would have refused, for an
// object that is stored counts: the error joins everything that is wrong, each with its field and what to write instead, and a Pool whose
// CIDR is valid takes part all the same.
func ParsePool(name string, spec []byte) (Pool, error) {
	pool := Pool{Name: name}
	var s poolSpec
	var errs problems
	if err := errs.decode(spec, &s); err != nil {
		return pool, err
	}
	pool.NATOutgoing, pool.CIDR = s.NATOutgoing, errs.cidr(s.CIDR)
	errs.selector("spec.nodeSelector", s.NodeSelector)
	errs.selector("spec.namespaceSelector", s.NamespaceSelector)
	errs.tunnels(s, pool.CIDR)
	for _, use := range s.AllowedUses {
		errs.choice("spec.allowedUses", use, "Workload", "Tunnel", "LoadBalancer")
	}
	errs.choice("spec.assignmentMode", s.AssignmentMode, "", "Automatic", "Manual")
	errs.blockSize(s, pool.CIDR)
	if len(s.IPIP) > 0 {
		errs.add("spec.ipip", "of Calico's first API; write ipipMode")
	}
	if s.NATOutgoingV1 {
		errs.add("spec.nat-outgoing", "of Calico's first API; write natOutgoing")
	}
	return pool, errors.Join(errs...)
}

type problems []error

func (e *problems) add(field, format string, args ...any) {
	*e = append(*e, fmt.Errorf("%s: %w", field, fmt.Errorf(format, args...)))
}

// decode reads those fields that the struct has, by their exact names, and reports the others: a misspelt natOutgoing is no natOutgoing.
func (e *problems) decode(spec []byte, into any) error {
	given, known := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := json.Unmarshal(spec, &given); err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	names, err := json.Marshal(into)
	if err == nil {
		err = json.Unmarshal(names, &known)
	}
	if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, ok := known[name]; !ok {
			e.add("spec."+name, "no such field, or one that packetwalk does not know")
			delete(given, name)
		}
	}
	exact, err := json.Marshal(given)
	if err == nil {
		err = json.Unmarshal(exact, into)
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("spec.%s: is a %s; want %s", wrong.Field, wrong.Value, wrong.Type)
	}
	return err
}

func (e *problems) choice(field, value string, known ...string) {
	if !slices.Contains(known, value) {
		e.add(field, "no value %q; write %s", value, strings.TrimPrefix(strings.Join(known, ", "), ", "))
	}
}

var linkLocal = map[bool]netip.Prefix{true: netip.MustParsePrefix("169.254.0.0/16"), false: netip.MustParsePrefix("fe80::/10")}

func (e *problems) cidr(text string) netip.Prefix {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
		e.add("spec.cidr", "%q is no range; write it as 10.240.0.0/16", text)
		return netip.Prefix{}
	case p.Bits() == 0:
		e.add("spec.cidr", "%s is every address, which an IP set of type hash:net cannot hold", text)
		return netip.Prefix{}
	case p != p.Masked():
		e.add("spec.cidr", "%s has bits set after the first %d; write %s", text, p.Bits(), p.Masked())
	}
	p = p.Masked()
	if l := linkLocal[p.Addr().Is4()]; l.Overlaps(p) {
		e.add("spec.cidr", "%s overlaps the link-local range %s; take another", p, l)
	}
	return p
}

func (e *problems) tunnels(s poolSpec, cidr netip.Prefix) {
	modes := []string{"", "Never", "Always", "CrossSubnet"}
	tunnel := func(field, mode string) bool {
		e.choice(field, mode, modes...)
		if mode == "" || mode == "Never" {
			return false
		}
		e.add(field, "%s: packetwalk makes no tunnels: pods are reached as the network plugin says; write Never", mode)
		return true
	}
	ipip, vxlan := tunnel("spec.ipipMode", s.IPIPMode), tunnel("spec.vxlanMode", s.VXLANMode)
	if ipip && vxlan {
		e.add("spec.vxlanMode", "together with ipipMode; write Never in one of them")
	}
	if ipip && cidr.Addr().Is6() {
		e.add("spec.ipipMode", "not for an IPv6 pool; write Never")
	}
}

// blockSize checks the bits of the prefix of a block, and the range that is cut into blocks, against what Calico's IPAM can do
// (libcalico-go/lib/clientv3/ippool.go).
func (e *problems) blockSize(s poolSpec, cidr netip.Prefix) {
	size, least, most := 26, 20, 32
	if cidr.Addr().Is6() {
		size, least, most = 122, 116, 128
	}
	if s.BlockSize != nil && *s.BlockSize != 0 {
		size = *s.BlockSize
	}
	if size < least || size > most {
		e.add("spec.blockSize", "%d; write %d to %d", size, least, most)
	} else if cidr.IsValid() && !s.Disabled && cidr.Bits() > size {
		e.add("spec.cidr", "%s is smaller than a block of /%d; write a larger range, or blockSize %d", cidr, size, max(cidr.Bits(), least))
	}
}

func (e *problems) selector(field, text string) {
	if err := checkSelector(text); err != nil {
		e.add(field, "%v; see Calico's selector syntax", err)
	}
}

// Overlap is a pair of pools that have addresses in common. Calico refuses the second of them when calicoctl makes it; the API by itself
// cannot.
type Overlap struct{ Pool, With string }

// Overlaps finds all pairs, each once, sorted.
func Overlaps(pools []Pool) []Overlap {
	sorted := slices.Clone(pools)
	slices.SortFunc(sorted, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	var found []Overlap
	for i, a := range sorted {
		for _, b := range sorted[:i] {
			if a.CIDR.IsValid() && b.CIDR.IsValid() && a.CIDR.Overlaps(b.CIDR) {
				found = append(found, Overlap{a.Name, b.Name})
			}
		}
	}
	return found
}
