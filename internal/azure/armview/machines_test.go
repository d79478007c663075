package armview_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// one is a source with the node n1, whose Kubernetes object has a providerID and an address.
type one struct {
	nodes
	providerID string
	address    string // "" for no object
}

func (o one) Names() []string { return []string{"node/n1"} }

func (o one) Objects() snapshot.Objects {
	if o.address == "" {
		return snapshot.Objects{}
	}
	return snapshot.Objects{Nodes: []snapshot.Node{{Name: "n1", ProviderID: o.providerID, IPs: []netip.Addr{netip.MustParseAddr(o.address)}}}}
}

const (
	subscription1 = "/subscriptions/00000000-0000-0000-0000-000000000001"
	subscription2 = "/subscriptions/00000000-0000-0000-0000-000000000002"
	instance0     = "/resourceGroups/MC_shop_shop_westeurope/providers/Microsoft.Compute/virtualMachineScaleSets/aks-pool1-1-vmss/virtualMachines/0"
	other0        = "/resourceGroups/MC_other_other_westeurope/providers/Microsoft.Compute/virtualMachineScaleSets/aks-pool1-2-vmss/virtualMachines/0"
	interfaces    = "/resourceGroups/MC_shop_shop_westeurope/providers/Microsoft.Network/networkInterfaces"
	machine       = "/resourceGroups/MC_shop_shop_westeurope/providers/Microsoft.Compute/virtualMachines/aks-pool1-0"
)

// interfaceJSON returns an interface as "az vmss nic list" and "az network nic list" write it.
func interfaceJSON(id, vm, mac, address string) string {
	attached := "null"
	if vm != "" {
		attached = fmt.Sprintf(`{"id": %q, "resourceGroup": "x"}`, vm)
	}
	return fmt.Sprintf(`[{"dnsSettings": {"appliedDnsServers": [], "dnsServers": []}, "enableIPForwarding": false, "id": %q,
"ipConfigurations": [{"id": %q, "name": "ipconfig1", "primary": true, "privateIPAddress": %q, "privateIPAllocationMethod": "Dynamic",
"subnet": {"id": "%s/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/shop/subnets/aks", "resourceGroup": "net"}}],
"macAddress": %q, "name": "nic", "primary": true, "provisioningState": "Succeeded", "virtualMachine": %s}]`,
		id, id+"/ipConfigurations/ipconfig1", address, subscription1, mac, attached)
}

// TestMachines shows that an interface is a node's only where address, machine in Azure and MAC address fit, and that resources of another
// cluster are an error that says what differs.
func TestMachines(t *testing.T) {
	const mac = "00-0D-3A-00-00-04" // of the host that node makes
	for name, c := range map[string]struct {
		providerID, address string
		nic, vm, mac, at    string
		want                []string // in the error; nil for a walk that goes on through Azure
	}{
		"same instance": {providerID: "azure://" + subscription1 + instance0, nic: subscription1 + instance0 + "/networkInterfaces/nic"},
		"same instance in another case": {providerID: "azure://" + strings.ToLower(subscription1+instance0),
			nic: subscription1 + instance0 + "/networkInterfaces/nic"},
		"other subscription": {providerID: "azure://" + subscription1 + instance0, nic: subscription2 + instance0 + "/networkInterfaces/nic",
			want: []string{"interface nic-0 has the address of node n1, 10.1.0.4, and belongs to instance 0 of scale set aks-pool1-1-vmss in " +
				"resource group MC_shop_shop_westeurope of subscription 00000000-0000-0000-0000-000000000002; the node is instance 0",
				"of subscription 00000000-0000-0000-0000-000000000001"}},
		"other resource group and scale set": {providerID: "azure://" + subscription1 + instance0,
			nic: subscription1 + other0 + "/networkInterfaces/nic", want: []string{"scale set aks-pool1-2-vmss in resource group MC_other_other"}},
		"other instance": {providerID: "azure://" + subscription1 + strings.TrimSuffix(instance0, "0") + "1",
			nic: subscription1 + instance0 + "/networkInterfaces/nic", want: []string{"belongs to instance 0 of", "the node is instance 1 of"}},
		"same instance with another address": {providerID: "azure://" + subscription1 + instance0, at: "10.1.0.9",
			nic: subscription1 + instance0 + "/networkInterfaces/nic", want: []string{"has address 10.1.0.9, and the node has 10.1.0.4", "out of date"}},
		"same instance with another MAC address": {providerID: "azure://" + subscription1 + instance0, mac: "60-45-BD-11-22-33",
			nic: subscription1 + instance0 + "/networkInterfaces/nic", want: []string{"MAC address 60:45:bd:11:22:33; eth0 of node/n1 has 00:0d:3a:00:00:04"}},
		"machine of its own": {providerID: "azure://" + subscription1 + machine, nic: subscription1 + interfaces + "/nic",
			vm: subscription1 + machine},
		"other machine": {providerID: "azure://" + subscription1 + machine, nic: subscription1 + interfaces + "/nic",
			vm: subscription1 + machine + "1", want: []string{"belongs to aks-pool1-01 in", "the node is aks-pool1-0 in"}},
		"unattached in the same resource group": {providerID: "azure://" + subscription1 + machine, nic: subscription1 + interfaces + "/nic"},
		"unattached in another resource group": {providerID: "azure://" + subscription2 + machine, nic: subscription1 + interfaces + "/nic",
			want: []string{"belongs to resource group MC_shop_shop_westeurope of subscription 00000000-0000-0000-0000-000000000001"}},
		"node without providerID": {nic: subscription1 + instance0 + "/networkInterfaces/nic"},
		"node without providerID, other MAC": {nic: subscription1 + instance0 + "/networkInterfaces/nic", mac: "60-45-BD-11-22-33",
			want: []string{"MAC"}},
		"no object, same MAC":                      {address: "-", nic: subscription1 + instance0 + "/networkInterfaces/nic"},
		"no object, other MAC":                     {address: "-", nic: subscription1 + instance0 + "/networkInterfaces/nic", mac: "60-45-BD-11-22-33", want: []string{"MAC"}},
		"no object, interface without MAC address": {address: "-", nic: subscription1 + instance0 + "/networkInterfaces/nic", mac: "-"},
	} {
		t.Run(name, func(t *testing.T) {
			r := armview.NewResources()
			set := func(v, otherwise string) string {
				switch v {
				case "":
					return otherwise
				case "-":
					return ""
				}
				return v
			}
			if err := r.Read("nic.json", []byte(interfaceJSON(c.nic, c.vm, set(c.mac, mac), set(c.at, "10.1.0.4")))); err != nil {
				t.Fatal(err)
			}
			src, err := armview.Extend(one{source(), c.providerID, set(c.address, "10.1.0.4")}, r)
			var result *walk.Result
			if err == nil {
				result, err = walk.Walk(src, request(t, "10.1.0.4 > 198.51.100.80:443"))
			}
			if c.want == nil {
				if err != nil || src.Unmatched() != nil {
					t.Fatal(err, src.Unmatched())
				}
				if end := result.Outcomes[0].End; end.Host != armview.Host {
					t.Errorf("ends on %s: %s", end.Host, end.Why)
				}
				return
			}
			if _, ok := errors.AsType[*armview.MismatchError](err); !ok {
				t.Fatalf("error %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q, want %q in it", err, w)
				}
			}
		})
	}
}

// TestTwoClusters shows that of two clusters with the same addresses the snapshot's own is taken.
func TestTwoClusters(t *testing.T) {
	r := armview.NewResources()
	for file, id := range map[string]string{
		"a.json": subscription2 + other0, "b.json": subscription1 + instance0, "c.json": subscription1 + other0,
	} {
		if err := r.Read(file, []byte(interfaceJSON(id+"/networkInterfaces/nic", "", "", "10.1.0.4"))); err != nil {
			t.Fatal(err)
		}
	}
	src := extend(t, one{source(), "azure://" + subscription1 + instance0, "10.1.0.4"}, r)
	result, err := walk.Walk(src, request(t, "10.1.0.4 > 198.51.100.80:443"))
	if err != nil {
		t.Fatal(err)
	}
	if end := result.Outcomes[0].End; end.Packet.In != "nic-0-2" { // the second by its id
		t.Errorf("in by %s on %s: %s", end.Packet.In, end.Host, end.Why)
	}
	host, err := src.Host(armview.Host)
	if err != nil || len(host.Peers) != 1 {
		t.Fatal(host.Peers, err)
	}
}

// TestAddressAlone shows that an interface that only its address tells is assumed to be a machine's, and that of two nothing tells which.
func TestAddressAlone(t *testing.T) {
	for name, c := range map[string]struct {
		macs      []string // of the interfaces, in resource groups of their own; the host's is 00:0d:3a:00:00:04
		unknown   bool     // the host's MAC address is not known
		assumed   bool
		ambiguous bool
	}{
		"same MAC address":                    {macs: []string{"00-0D-3A-00-00-04"}},
		"interface without MAC address":       {macs: []string{""}, assumed: true},
		"host without MAC address":            {macs: []string{"00-0D-3A-00-00-04"}, unknown: true, assumed: true},
		"two, one with the host's":            {macs: []string{"", "00-0D-3A-00-00-04"}},
		"two without MAC addresses":           {macs: []string{"", ""}, ambiguous: true},
		"two, host without MAC address":       {macs: []string{"00-0D-3A-00-00-04", "60-45-BD-01-02-03"}, unknown: true, ambiguous: true},
		"two, of which one is another host's": {macs: []string{"", "60-45-BD-01-02-03"}, assumed: true},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := source()
			if c.unknown {
				hosts["node/n1"].FIB.Link("eth0").MAC = packet.MAC{}
			}
			r := armview.NewResources()
			for i, mac := range c.macs {
				file, id := fmt.Sprintf("%d.json", i), []string{subscription1 + instance0, subscription2 + other0}[i]
				if err := r.Read(file, []byte(interfaceJSON(id+"/networkInterfaces/nic", "", mac, "10.1.0.4"))); err != nil {
					t.Fatal(err)
				}
			}
			src := extend(t, one{nodes: hosts}, r)
			_, err := walk.Walk(src, request(t, "10.1.0.4 > 198.51.100.80:443"))
			if _, mismatch := errors.AsType[*armview.MismatchError](err); mismatch != c.ambiguous || err != nil && !mismatch {
				t.Fatalf("error %v", err)
			}
			if assumed := src.Assumed("node/n1"); c.assumed != strings.HasPrefix(assumed, "assuming interface nic-0 belongs to the machine") {
				t.Errorf("assumed %q", assumed)
			}
		})
	}
}

// TestUnmatched shows that resources without any interface of the snapshot's machines are an error that names the command.
func TestUnmatched(t *testing.T) {
	for name, c := range map[string]struct {
		providerID, address, want string
	}{
		"scale set": {providerID: "azure://" + subscription1 + instance0, address: "10.1.0.4",
			want: `run "az vmss nic list --resource-group MC_shop_shop_westeurope --vmss-name aks-pool1-1-vmss -o json > vmss-nic-aks-pool1-1-vmss.json"`},
		"machine": {providerID: "azure://" + subscription1 + machine, address: "10.1.0.4",
			want: `run "az network nic list --resource-group MC_shop_shop_westeurope -o json > nic-MC_shop_shop_westeurope.json"`},
		"no providerID": {address: "10.1.0.4", want: `run "az vmss nic list --resource-group NODE_RESOURCE_GROUP --vmss-name SCALE_SET `},
		"no object":     {want: `no network interface that was read has an address of node/n1`},
	} {
		t.Run(name, func(t *testing.T) {
			r := armview.NewResources()
			const elsewhere = subscription2 + other0 + "/networkInterfaces/nic"
			if err := r.Read("nic.json", []byte(interfaceJSON(elsewhere, "", "", "10.1.0.77"))); err != nil {
				t.Fatal(err)
			}
			err := extend(t, one{source(), c.providerID, c.address}, r).Unmatched()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestLabCapture shows that a wire to a fabric that the snapshot does not have is not taken for one to Azure: a capture of a lab's node has
// the wire of the lab. Its links are of other kinds than those of machines.
func TestLabCapture(t *testing.T) {
	for mac, want := range map[string]string{"00-0D-3A-00-00-04": "", "00-0D-3A-99-99-99": "MAC address 00:0d:3a:99:99:99; eth0 of node/n1 has"} {
		hosts := source()
		n1 := hosts["node/n1"]
		n1.FIB.Link("eth0").Kind = "veth"
		n1.Peers = []snapshot.Peer{{Link: "eth0", Host: armview.Host, PeerLink: "nic7"}}
		r := armview.NewResources()
		if err := r.Read("nic.json", []byte(interfaceJSON(subscription1+instance0+"/networkInterfaces/nic", "", mac, "10.1.0.4"))); err != nil {
			t.Fatal(err)
		}
		src := extend(t, one{hosts, "azure://" + subscription1 + instance0, "10.1.0.4"}, r)
		result, err := walk.Walk(src, request(t, "10.1.0.4 > 198.51.100.80:443"))
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if end := result.Outcomes[0].End; end.Packet.In != "nic-0" {
			t.Errorf("in by %s: %s", end.Packet.In, end.Why)
		}
	}
}
