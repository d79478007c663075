package instances

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
)

// paper is a network without a kernel.
type paper struct{ vnet.Network }

func (p *paper) Update(change func(*vnet.Network) error) error {
	next := p.Clone()
	if err := change(&next); err != nil {
		return err
	}
	if err := next.Validate(); err != nil {
		return err
	}
	p.Network = next
	return nil
}

func (p *paper) Snapshot() (vnet.Network, vnet.Health) { return p.Clone(), vnet.Health{} }

func (p *paper) AttachNIC(string, *netns.Namespace) error { return nil }

func (p *paper) nics() []string {
	var all []string
	for _, nic := range p.NICs {
		all = append(all, nic.VNet+" "+nic.Machine+" "+nic.Primary().Address.String())
	}
	slices.Sort(all)
	return all
}

const testSubnet = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/v/subnets/groups"

// machines are none: a group's needs /dev, control groups and programs (test/faults has those of labs).
type machines struct{ Machines }

func (machines) Remove(string) error { return nil }

func (machines) HasImage(_ context.Context, ref string) error {
	if ref == "no/such" {
		return errors.New("there is none")
	}
	return nil
}

// testGroups returns a service on a network with a subnet of groups, which has room for room of them.
func testGroups(t *testing.T, room int) (*Groups, *paper) {
	t.Helper()
	bits := 28
	if room <= 3 {
		bits = 29 // Azure keeps five of each subnet
	}
	prefix := netip.PrefixFrom(netip.MustParseAddr("10.1.0.0"), bits)
	p := &paper{vnet.Network{Subscription: "s", NodeResourceGroup: "rg", VNets: []vnet.VNet{vnet.ContainerHosts(netip.MustParsePrefix("100.64.0.0/16")), {
		Name: "v", AddressPrefixes: []netip.Prefix{prefix}, Subnets: []vnet.Subnet{{Name: "groups", Prefix: prefix}},
	}}}}
	dir := t.TempDir()
	return &Groups{ctx: t.Context(), groups: map[string]*group{}, cfg: Config{
		Dir: dir + "/groups", State: func(group string) string { return filepath.Join(dir, "state", group) }, Machines: machines{},
		NetNSDir: dir + "/netns", HostsDir: dir + "/hosts", Network: p, Log: slog.New(slog.DiscardHandler),
		LogFile: func(name string) string { return dir + "/" + name + ".log" },
	}}, p
}

func testSpec(name, uid string) aci.ContainerGroup {
	return aci.ContainerGroup{Name: name, Tags: map[string]string{aci.TagUID: uid},
		Properties: aci.GroupProperties{SubnetIDs: []aci.SubnetID{{ID: testSubnet}}}}
}

// TestNICs: no group takes another's NIC, nor that of the machine that another one runs on, nor a VM's; and none takes one away.
func TestNICs(t *testing.T) {
	s, p := testGroups(t, 10)
	if _, err := p.AllocateNIC("default-web", "v", "groups", 1); err != nil {
		t.Fatal(err)
	}
	before := p.nics()
	web, other := s.newGroup(testSpec("default-web", "1")), s.newGroup(testSpec("default-web-host", "2"))
	for g, want := range map[*group]string{web: "default-web", other: "default-web-host"} {
		a, err := g.allocate()
		if err != nil {
			t.Fatal(err)
		}
		g.ip = a
		if again, err := g.allocate(); err != nil || again != a {
			t.Errorf("%s has %s, and then %s %v", want, a, again, err)
		}
		if !netip.MustParsePrefix("10.1.0.0/28").Contains(a) {
			t.Errorf("%s has %s, which is not of its subnet", want, a)
		}
	}
	if len(p.NICs) != 5 || web.ip == other.ip {
		t.Errorf("NICs: %q", p.nics())
	}
	for _, g := range []*group{web, other} {
		if nic, _ := p.NIC(nicOf(g.machineName())); !nic.ContainerGroup {
			t.Errorf("%+v is not a group's", nic)
		}
		had := p.nics()
		if err := g.disconnect(); err != nil {
			t.Fatal(err)
		}
		left := slices.DeleteFunc(had, func(nic string) bool {
			return strings.Contains(nic, " "+g.machineName()+" ") || strings.Contains(nic, " "+g.hostMachine()+" ")
		})
		if !slices.Equal(p.nics(), left) {
			t.Errorf("after %s went: %q, want %q", g.name, p.nics(), left)
		}
	}
	if !slices.Equal(p.nics(), before) {
		t.Errorf("left: %q, want %q", p.nics(), before)
	}
}

// TestForeignNIC: whatever has the name of a group's NIC and is not the group's is left alone.
func TestForeignNIC(t *testing.T) {
	s, p := testGroups(t, 10)
	g := s.newGroup(testSpec("g", "1"))
	for _, machine := range []string{g.machineName(), g.hostMachine()} {
		if _, err := p.AllocateNIC(machine, "v", "groups", 1); err != nil {
			t.Fatal(err)
		}
	}
	before := p.nics()
	if a, err := g.allocate(); err == nil {
		t.Errorf("the group took %s", a)
	}
	if err := g.disconnect(); err != nil || !slices.Equal(p.nics(), before) {
		t.Errorf("%v, left %q, want %q", err, p.nics(), before)
	}
}

// TestExhausted: a group that its subnet has no address for says so, until it has one.
func TestExhausted(t *testing.T) {
	s, p := testGroups(t, 3)
	for _, machine := range []string{"a", "b", "c"} {
		if _, err := p.AllocateNIC(machine, "v", "groups", 1); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	g := s.newGroup(testSpec("g", "1"))
	s.groups["g"] = g
	g.launch(ctx)
	eventually.Succeeds(t, 30*time.Second, func() error {
		if g.failure() == "" {
			return errors.New("no failure")
		}
		return nil
	})
	cancel()
	<-g.done
	st := s.Status()
	if len(st) != 1 || st[0].State != aci.GroupPending || !strings.Contains(st[0].Error, "free addresses") {
		t.Errorf("%+v", st)
	}
	events := g.view().Properties.InstanceView.Events
	if len(events) != 1 || events[0].Type != "Warning" || events[0].Name != "FailedProvisioning" || events[0].Message != st[0].Error {
		t.Errorf("%+v", events)
	}
}

// TestDeleteOfAnother: a group is deleted for its own pod only, and once.
func TestDeleteOfAnother(t *testing.T) {
	s, _ := testGroups(t, 10)
	g := s.newGroup(testSpec("a-b-c", "1"))
	s.groups[g.name] = g
	ctx := t.Context()
	if err := s.Delete(ctx, g.name, "2", 0); !aci.IsConflict(err) || s.groups[g.name] != g || g.removed {
		t.Errorf("%v, groups %v", err, s.groups)
	}
	if err := s.Delete(ctx, g.name, "1", 0); err != nil || len(s.groups) != 0 {
		t.Errorf("%v, groups %v", err, s.groups)
	}
	// Who waited to remove it, too, leaves the next group of that name alone.
	next := s.newGroup(testSpec("a-b-c", "3"))
	if err := next.save(); err != nil {
		t.Fatal(err)
	}
	if err := g.remove(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.load("a-b-c"); err != nil {
		t.Errorf("the next group's file: %v", err)
	}
}
