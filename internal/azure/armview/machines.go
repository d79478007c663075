package armview

import (
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// MismatchError says that the resources are those of another cluster than the snapshot's, where the same address is another machine's, or
// those of several clusters of which nothing shows which one is the snapshot's.
type MismatchError struct{ Why string }

func (e *MismatchError) Error() string { return "Azure's resources are " + e.Why }

func mismatch(why string, values ...any) error {
	return &MismatchError{"not those of the snapshot's cluster: " + fmt.Sprintf(why, values...)}
}

// identify finds the node whose interface it is: the one that has its address, unless that is another machine in Azure.
func (f *fabric) identify(n *nic) {
	for _, c := range n.configs {
		node := f.nodeAt[c.address]
		if node == nil {
			continue
		}
		n.other = !n.mayBe(node)
		if !n.other {
			n.machine = "node/" + node.Name
		}
		return
	}
}

// mayBe reports whether an interface's machine is a node, by what both say of it.
func (n *nic) mayBe(node *snapshot.Node) bool {
	id, ok := strings.CutPrefix(node.ProviderID, "azure://")
	if !ok {
		return true
	}
	if n.owner() == "" { // not attached, or written by a tool that leaves that out
		return groupOf(id) == groupOf(n.ID)
	}
	return strings.EqualFold(id, n.owner())
}

// owner returns the id of an interface's machine, "" where it has none.
func (n *nic) owner() string {
	if machine, _, ok := cutFold(n.ID, "/networkinterfaces/"); ok && scaleSet(n.ID) != "" {
		return machine
	}
	if n.VirtualMachine != nil {
		return n.VirtualMachine.ID
	}
	return ""
}

// cutFold does what strings.Cut does, for a separator of ASCII in upper or lower case.
func cutFold(s, separator string) (before, after string, found bool) {
	for i := 0; i+len(separator) <= len(s); i++ {
		if s[i] == separator[0] && strings.EqualFold(s[i:i+len(separator)], separator) {
			return s[:i], s[i+len(separator):], true
		}
	}
	return s, "", false
}

// checkNodes returns an error where the nodes are other machines than those whose interfaces were read.
func (f *fabric) checkNodes() error {
	for i := range f.objects.Nodes {
		node := &f.objects.Nodes[i]
		id, ok := strings.CutPrefix(node.ProviderID, "azure://")
		if !ok || slices.ContainsFunc(f.nics, func(n *nic) bool { return n.machine == "node/"+node.Name }) {
			continue
		}
		for _, n := range f.nics {
			switch at := n.configs[0].address; {
			case n.other && slices.Contains(node.IPs, at):
				return mismatch("interface %s has the address of node %s, %s, and belongs to %s; the node is %s",
					n.title, plain(node.Name), at, describe(n.ID, n.owner()), describe(id, id))
			case strings.EqualFold(id, n.owner()) && len(node.IPs) > 0:
				return mismatch("interface %s of node %s has address %s, and the node has %s: one of both is out of date", n.title, plain(node.Name),
					at, node.IPs[0])
			}
		}
	}
	return nil
}

// describe names a machine with its resource group and subscription; id is of the machine or of its interface.
func describe(id, machine string) string {
	subscription, group := subscriptionAndGroup(id)
	where := fmt.Sprintf("resource group %s of subscription %s", group, subscription)
	if machine == "" {
		return where
	}
	name := plain(last(machine))
	if set := scaleSet(machine); set != "" {
		name = fmt.Sprintf("instance %s of scale set %s", name, set)
	}
	return name + " in " + where
}

// mac returns an interface's MAC address, zero where it has none.
func (i *Interface) mac() packet.MAC {
	if m, err := packet.ParseMAC(strings.ReplaceAll(i.MACAddress, "-", ":")); err == nil {
		return m
	}
	return packet.MAC{}
}

// checkMAC returns an error where a host has an interface's address on a link, and no link of it has the interface's MAC address.
func (n *nic) checkMAC(h *snapshot.Host) error {
	want := n.mac()
	if want.IsZero() || slices.ContainsFunc(h.FIB.Links, func(l fib.Link) bool { return l.MAC == want }) {
		return nil
	}
	for _, c := range n.configs {
		a := h.FIB.HasAddress(c.address)
		if a == nil {
			continue
		}
		if l := h.FIB.Link(a.Link); l != nil && !l.MAC.IsZero() {
			return mismatch("interface %s has the address of %s, %s, and MAC address %s; %s of %s has %s", n.title, h.Name, c.address, want,
				l.Name, h.Name, l.MAC)
		}
	}
	return nil
}

// isConfirmed reports whether more than the address shows that an interface is a host's: the MAC address, or the node's providerID.
func (f *fabric) isConfirmed(n *nic, h *snapshot.Host) bool {
	mac := n.mac()
	if !mac.IsZero() && slices.ContainsFunc(h.FIB.Links, func(l fib.Link) bool { return l.MAC == mac }) {
		return true
	}
	return slices.ContainsFunc(n.configs, func(c *config) bool {
		node := f.nodeAt[c.address]
		return node != nil && "node/"+node.Name == h.Name && n.machine == h.Name && strings.HasPrefix(node.ProviderID, "azure://")
	})
}

// oneOfSeveral chooses from the interfaces that have a host's address the one that is the host's, and reports whether it is confirmed.
func (f *fabric) oneOfSeveral(nics []*nic, h *snapshot.Host) (n *nic, confirmed bool, err error) {
	if i := slices.IndexFunc(nics, func(n *nic) bool { return f.isConfirmed(n, h) }); i >= 0 {
		return nics[i], true, nil
	}
	if n = nics[0]; len(nics) > 1 {
		other := nics[1]
		return nil, false, &MismatchError{fmt.Sprintf("of several clusters: interfaces %s and %s both have the address of %s, %s, and belong to "+
			"%s and %s; save what \"ip addr\" prints there, or name the files of one cluster", n.title, other.title, h.Name,
			n.configs[0].address, describe(n.ID, n.owner()), describe(other.ID, other.owner()))}
	}
	return n, false, nil
}
