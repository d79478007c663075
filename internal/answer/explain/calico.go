package explain

import (
	"net/netip"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// natOutgoing is Calico's chain that translates for its pools (felix/rules/nat.go).
const natOutgoing = "cali-nat-outgoing"

// pool finds the narrowest of Calico's pools that an address is in, among those that translate or among all.
func (o *Owners) pool(a netip.Addr, translating bool) (snapshot.Pool, bool) {
	if o == nil {
		return snapshot.Pool{}, false
	}
	var best snapshot.Pool
	for _, p := range o.objects.Pools {
		if p.CIDR.Contains(a) && (p.NATOutgoing || !translating) && (!best.CIDR.IsValid() || p.CIDR.Bits() > best.CIDR.Bits()) {
			best = p
		}
	}
	return best, best.CIDR.IsValid()
}

// calico explains a rule of Calico's nat chains, or why it did not apply.
func (t *reasoner) calico(v *netfilter.Visit, p *packet.Packet) string {
	if v.Chain.Name != natOutgoing {
		return "Calico"
	}
	if v.Verdict.Kind == netfilter.Break {
		return t.owners.keptByPools(p)
	}
	source := p.Source
	for _, c := range v.Changes {
		if c.Field == "source" {
			source = endAddress(c.From)
		}
	}
	if pool, ok := t.owners.pool(source, true); ok {
		return "Calico pool " + pool.Name + " has natOutgoing, and no pool holds the destination"
	}
	return "Calico: from a pool with natOutgoing to a destination outside every pool"
}

// keptByPools tells why Calico's chain does not translate a packet.
func (o *Owners) keptByPools(p *packet.Packet) string {
	if o == nil || len(o.objects.Pools) == 0 {
		return "Calico: from no pool with natOutgoing, or to one of the pools"
	}
	from, ok := o.pool(p.Source, true)
	if !ok {
		return "Calico: no pool with natOutgoing holds the source"
	}
	to, ok := o.pool(p.Destination, false)
	switch {
	case !ok:
		return "Calico pool " + from.Name + " has natOutgoing and no pool holds the destination: the node's IP sets do not say what the pools do"
	case to.Name == from.Name:
		return "Calico pool " + to.Name + " holds the destination, too"
	}
	return "Calico pool " + to.Name + " holds the destination"
}
