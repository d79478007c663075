package fabric

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
)

// remember keeps a handle of a namespace that was wired, of which Missing and Repair compare the wire. Held: mu.
func (f *Fabric) remember(a attachment, far *netns.Namespace) error {
	ns, err := netns.Open(far.Path()) // the caller may close its own
	if err != nil {
		return err
	}
	f.forgetAttached(a)
	f.attached[a] = ns
	return nil
}

// forgetAttached ends what remember began. Held: mu.
func (f *Fabric) forgetAttached(a attachment) {
	if ns := f.attached[a]; ns != nil {
		_ = ns.Close()
		delete(f.attached, a)
	}
}

// A connection is a wire with the namespaces that it joins.
type connection struct {
	vnet.Wire
	machine   string // "" for the uplink
	near, far *netns.Namespace
}

// connections returns the uplink, and the wires of all that is attached, in the order of the plan. Held: mu.
func (f *Fabric) connections(plan vnet.Plan) []connection {
	all := []connection{{plan.Uplink, "", f.fabric, f.internet}}
	for _, w := range plan.NICs {
		if far := f.attached[attachment{kindNIC, w.Name}]; far != nil {
			nic, _ := f.network.NIC(w.Name)
			all = append(all, connection{w, nic.Machine, f.fabric, far})
		}
	}
	for _, w := range plan.Hosts {
		if far := f.attached[attachment{kindHost, w.Name}]; far != nil {
			all = append(all, connection{w, w.Name, f.internet, far})
		}
	}
	return all
}

// missing returns what the connection lacks, in words.
func (c connection) missing() ([]string, error) {
	subject := c.machine
	if subject == "" {
		subject = "Azure's network"
	}
	has, err := netns.HasVeth(end(c.near, c.Inside), end(c.far, c.Outside))
	if err != nil {
		return nil, err
	}
	if !has {
		return []string{fmt.Sprintf("%s: its link %s to the rest of the network is missing or down", subject, c.Outside.Link)}, nil
	}
	want := c.Far
	if len(want.Addresses) > 0 {
		link, err := c.far.LinkOf(want.Addresses[0].Prefix.Addr())
		if err != nil {
			return nil, err
		}
		if link != "" { // a bridge's, where a CNI plugin has moved it there
			want.Addresses = nil
		}
	}
	lacks, err := missingOf(c.far, want, hasAddress(c.Far))
	for i, text := range lacks {
		lacks[i] = fmt.Sprintf("%s: %s is missing", subject, text)
	}
	return lacks, err
}

// hasAddress returns a function that reports whether a state has an address, or it is lo's.
func hasAddress(s netns.State) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		return a == netns.Loopback || slices.ContainsFunc(s.Addresses, func(has netns.Address) bool { return has.Prefix.Addr() == a })
	}
}

// missingOf returns what a namespace lacks of a state, and of what the kernel made with its addresses.
func missingOf(ns *netns.Namespace, want netns.State, isChosen func(netip.Addr) bool) ([]string, error) {
	lacks, err := ns.Missing(want)
	if err != nil {
		return nil, err
	}
	lost, err := ns.LostRoutes(isChosen)
	return append(lacks, lost...), err
}

// repair makes the connection as it was when its machine was attached. What the machine has beside it stays.
func (c connection) repair() error {
	var want netns.State
	for _, a := range c.Far.Addresses {
		link, err := netns.RepairVeth(end(c.near, c.Inside), end(c.far, c.Outside), vnet.MTU, a.Prefix.Addr())
		if err != nil {
			return err
		}
		a.Link = link
		want.Addresses = append(want.Addresses, a)
		for _, r := range c.Far.Routes {
			r.Link = link
			want.Routes = append(want.Routes, r)
		}
	}
	if len(c.Far.Addresses) == 0 {
		return netns.EnsureVeth(end(c.near, c.Inside), end(c.far, c.Outside), vnet.MTU)
	}
	if err := c.far.RestoreRoutes(hasAddress(c.Far)); err != nil { // before those by a gateway
		return err
	}
	want.Protocol = protocolDHCP
	return c.far.Apply(want)
}

// Missing returns, one sentence each, what the kernel lacks of the network: links, addresses, routes, rules, settings, tables. It compares
// the wires of those machines and hosts that are attached.
func (f *Fabric) Missing() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fabric == nil {
		return nil, nil
	}
	return f.missing(vnet.NewPlan(f.network, f.health))
}

func (f *Fabric) missing(plan vnet.Plan) (all []string, err error) {
	for _, c := range f.connections(plan) {
		lacks, err := c.missing()
		if err != nil {
			return nil, err
		}
		all = append(all, lacks...)
	}
	for _, side := range []struct {
		ns   *netns.Namespace
		want netns.State
	}{{f.fabric, plan.Fabric}, {f.internet, plan.Internet}} {
		links, err := side.ns.LinkNames()
		if err != nil {
			return nil, err
		}
		lacks, err := missingOf(side.ns, side.want.On(func(l string) bool { return slices.Contains(links, l) }), hasAddress(side.want))
		if err != nil {
			return nil, err
		}
		for _, text := range lacks {
			all = append(all, fmt.Sprintf("Azure's network: %s is missing", text))
		}
	}
	if has, err := ruleset.HasTable(f.fabric, "ip", vnet.TableName); err != nil || !has {
		return append(all, "Azure's network: its nft table "+vnet.TableName+" is missing"), err
	}
	return all, nil
}

// Repair makes what Missing names, and returns that. Nothing is done where nothing is missing.
func (f *Fabric) Repair() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fabric == nil {
		return nil, errNotStarted
	}
	plan := vnet.NewPlan(f.network, f.health)
	missing, err := f.missing(plan)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	for _, c := range f.connections(plan) {
		lacks, err := c.missing()
		if err == nil && len(lacks) > 0 {
			err = c.repair()
		}
		if err != nil {
			return nil, fmt.Errorf("repair %s: %w", c.Name, err)
		}
	}
	for ns, want := range map[*netns.Namespace]netns.State{f.fabric: plan.Fabric, f.internet: plan.Internet} {
		if err := ns.RestoreRoutes(hasAddress(want)); err != nil {
			return nil, fmt.Errorf("repair Azure's network: %w", err)
		}
	}
	f.applied.fabric, f.applied.internet, f.applied.nft = netns.State{}, netns.State{}, ""
	if err := f.apply(); err != nil {
		return nil, fmt.Errorf("repair Azure's network: %w", err)
	}
	return missing, nil
}
