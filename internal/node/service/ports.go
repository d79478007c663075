package service

import (
	"cmp"
	"maps"
	"slices"
)

// Ports are the service ports of one family as one node sees them, kept by service, so that a change costs no more than what the service
// has. It is not safe for concurrent use.
type Ports struct {
	byService map[Key][]Port
	count     int
	udp       map[Key]bool // services with ports of UDP
	checked   map[Key]bool // services with health check node ports
	sorted    []Key        // of byService; nil where one came or went
}

// NewPorts has none.
func NewPorts() *Ports {
	return &Ports{byService: map[Key][]Port{}, udp: map[Key]bool{}, checked: map[Key]bool{}}
}

// Put makes ports those of a service, sorted as Of gives them: read only from now on.
func (p *Ports) Put(key Key, ports []Port) {
	p.count += len(ports) - len(p.byService[key])
	mark := func(in map[Key]bool, has func(*Port) bool) {
		if slices.ContainsFunc(ports, func(p Port) bool { return has(&p) }) {
			in[key] = true
		} else {
			delete(in, key)
		}
	}
	mark(p.udp, func(p *Port) bool { return p.Protocol == UDP })
	mark(p.checked, func(p *Port) bool { return p.HealthCheckNodePort != 0 })
	if _, there := p.byService[key]; there != (len(ports) > 0) {
		p.sorted = nil
	}
	if len(ports) == 0 {
		delete(p.byService, key)
		return
	}
	p.byService[key] = ports
}

// Of returns the ports of a service.
func (p *Ports) Of(key Key) []Port { return p.byService[key] }

// Len returns how many there are.
func (p *Ports) Len() int { return p.count }

// Services returns those that have ports, sorted: read only.
func (p *Ports) Services() []Key {
	if p.sorted == nil {
		p.sorted = slices.SortedFunc(maps.Keys(p.byService), CompareKeys)
	}
	return p.sorted
}

// All returns those of all services, sorted by name and protocol.
func (p *Ports) All() []Port { return p.of(p.Services()) }

// UDP returns those of services with UDP ports.
func (p *Ports) UDP() []Port { return p.of(slices.SortedFunc(maps.Keys(p.udp), CompareKeys)) }

// Checked returns those of services with health check node ports.
func (p *Ports) Checked() []Port { return p.of(slices.SortedFunc(maps.Keys(p.checked), CompareKeys)) }

func (p *Ports) of(services []Key) (all []Port) {
	for _, key := range services {
		all = append(all, p.byService[key]...)
	}
	return all
}

// CompareKeys orders services by namespace and name.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service))
}
