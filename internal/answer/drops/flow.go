package drops

import (
	"fmt"
	"net/netip"
	"time"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// End is the sender or the receiver of dropped packets.
type End struct {
	Address netip.Addr
	Port    uint16        // 0 for the port of a client, and where there is none
	Owner   explain.Owner // zero where it is not known
}

// String returns "pod shop/web-1 (10.244.0.5:80)", or the address alone.
func (e End) String() string {
	if !e.Address.IsValid() {
		return "any address"
	}
	text := e.Address.String()
	if e.Port != 0 {
		text = netip.AddrPortFrom(e.Address, e.Port).String()
	}
	if e.Owner.Kind == "" {
		return text
	}
	return e.Owner.String() + " (" + text + ")"
}

// Flow holds the drops that a host made between two ends for one cause, whatever the client's port.
type Flow struct {
	Host     string
	Link     string // the interface at which the packets were; "" for none yet
	From, To End
	Protocol packet.Protocol
	Cause    Cause
	Count    uint64
	First    time.Time
	Last     time.Time
}

// flowKey tells flows apart.
type flowKey struct {
	host, link, reason, function string
	tuple                        packet.Tuple
	cause                        string
}

// Flows collects drops.
type Flows struct {
	all map[flowKey]*Flow
	// causes are those of flows with the client's port: each is looked for once.
	causes map[flowKey]Cause
}

const (
	// maxCauses limits the flows whose causes are remembered.
	maxCauses = 1 << 16
	// maxListed limits the flows that are listed one by one: senders may invent addresses. A host's further flows count as one.
	maxListed = 1 << 16
)

// Knows reports whether the cause of a host's drop was looked for already.
func (f *Flows) Knows(host string, d *witness.Drop) bool {
	_, known := f.causes[keyOf(host, d)]
	return known
}

func keyOf(host string, d *witness.Drop) flowKey {
	return flowKey{host: host, link: d.Packet.In, reason: d.Reason, function: d.Function, tuple: d.Packet.Tuple}
}

// Add adds a host's drop, and returns its flow. The flow is new if all its packets are the drop's.
func (f *Flows) Add(n Network, host string, d *witness.Drop) *Flow {
	key := keyOf(host, d)
	cause, known := f.causes[key]
	if !known {
		cause = n.Explain(host, d)
		if f.causes == nil || len(f.causes) == maxCauses {
			f.causes = map[flowKey]Cause{}
		}
		f.causes[key] = cause
	}
	client := &key.tuple.SourcePort
	if d.Reply {
		client = &key.tuple.DestinationPort
	}
	*client, key.cause = packet.Port{}, cause.Text
	flow := f.all[key]
	if flow == nil && len(f.all) >= maxListed {
		key, cause = flowKey{host: host}, Cause{Text: fmt.Sprintf("flows beyond the first %d, for any cause", maxListed)}
		flow = f.all[key]
	}
	if flow == nil {
		owners := n.Owners([]string{host})
		end := func(a netip.Addr, p packet.Port) End {
			owner, _ := owners.Address(a, d.Packet.Protocol, p.Number)
			return End{a, p.Number, owner}
		}
		t := &key.tuple
		flow = &Flow{Host: host, Link: d.Packet.In, From: end(t.Source, t.SourcePort), To: end(t.Destination, t.DestinationPort),
			Protocol: d.Packet.Protocol, Cause: cause, First: d.First}
		if f.all == nil {
			f.all = map[flowKey]*Flow{}
		}
		f.all[key] = flow
	}
	flow.Count += d.Count
	flow.Last = d.Last
	return flow
}

// All returns the flows in no order.
func (f *Flows) All() []*Flow {
	all := make([]*Flow, 0, len(f.all))
	for _, flow := range f.all {
		all = append(all, flow)
	}
	return all
}
