package fabric_test

import (
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
)

// TestRepair takes pieces of the network away by hand: Missing names each, Repair makes them again, and packets arrive as before.
func TestRepair(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 3)
	w.update(addService)
	w.listen("testvm", "0.0.0.0:22")
	w.listen("client", "0.0.0.0:80")
	nic, _ := w.cfg.Network.NIC("node0-nic")
	fabricNS := w.fabric.Namespace()
	bridge := func(t *testing.T, ns *netns.Namespace) { // as a CNI plugin in bridge mode does
		t.Helper()
		link := strings.Fields(run(t, ns, "ip", "-brief", "link", "show", "eth0"))
		if len(link) < 3 {
			t.Fatalf("eth0: %q", link)
		}
		run(t, ns, "sh", "-c", "ip link add name azure0 address "+link[2]+` type bridge && ip link set eth0 master azure0 &&
			ip addr flush dev eth0 && ip link set azure0 up && ip addr add `+w.address("node0")+`/20 dev azure0 && ip route add default via 10.13.64.1 dev azure0`)
	}
	check := func(t *testing.T, want string) {
		t.Helper()
		missing, err := w.fabric.Missing()
		if err != nil || !slices.ContainsFunc(missing, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("missing: %q, %v; want %q", missing, err, want)
		}
		if repaired, err := w.fabric.Repair(); err != nil || !slices.Equal(repaired, missing) {
			t.Errorf("repaired: %q, %v; want %q", repaired, err, missing)
		}
		if left, err := w.fabric.Missing(); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
		w.mustAsk("node0", w.address("testvm")+":22")
		w.mustAsk("node0", client+":80")
	}
	if missing, err := w.fabric.Missing(); err != nil || len(missing) > 0 {
		t.Fatalf("missing at the start: %q, %v", missing, err)
	}
	for _, c := range []struct {
		name string
		ns   *netns.Namespace
		do   string
		want string
	}{
		{"link of a node in the fabric", fabricNS, "ip link del " + nic.Link(), "node0: its link eth0"},
		{"link of a node is down", w.ns["node0"], "ip link set eth0 down", "node0: its link eth0"},
		{"default route of a node", w.ns["node0"], "ip route del default", "node0: route 0.0.0.0/0 via 10.13.64.1"},
		{"route of a node to its subnet", w.ns["node0"], "ip route del 10.13.64.0/20", "node0: route 10.13.64.0/20 dev eth0"},
		{"route of a VM to its subnet", w.ns["testvm"], "ip route del 10.13.1.0/24", "testvm: route 10.13.1.0/24 dev eth0"},
		{"routes of a VM", w.ns["testvm"], "ip route flush table main", "testvm: route 10.13.1.0/24 dev eth0"},
		{"route of a VM to itself", w.ns["testvm"], "ip route del local 10.13.1.4 dev eth0 table local", "testvm: route local 10.13.1.4 dev eth0"},
		{"loopback of a VM", w.ns["testvm"], "ip link set lo down", "testvm: state UP of link lo"},
		{"loopback route of a VM", w.ns["testvm"], "ip route del local 127.0.0.0/8 dev lo table local", "testvm: route local 127.0.0.0/8 dev lo"},
		{"loopback of the fabric", fabricNS, "ip link set lo down", "Azure's network: state UP of link lo"},
		{"route of the fabric to itself", fabricNS, "ip route del local 10.13.1.1 dev lo table local", "Azure's network: route local 10.13.1.1 dev lo"},
		{"address of a VM", w.ns["testvm"], "ip addr flush dev eth0", "testvm: address 10.13.1.4/24 on eth0"},
		{"link of an internet host", w.ns["client"], "ip link del eth0", "client: its link eth0"},
		{"uplink", fabricNS, "ip link del internet", "Azure's network: its link fabric"},
		{"route to a node", fabricNS, "ip route del " + w.address("node0"), "Azure's network: route " + w.address("node0")},
		{"policy rule", fabricNS, "ip rule del pref 1000 fwmark " + "1/0xffff", "Azure's network: rule 1000"},
		{"setting", fabricNS, "echo 0 > /proc/sys/net/ipv4/ip_forward", "Azure's network: setting net/ipv4/ip_forward=1"},
		{"table", fabricNS, "nft delete table ip " + vnet.TableName, "Azure's network: its nft table azure"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "policy rule" {
				rule, _, _ := strings.Cut(run(t, fabricNS, "sh", "-c", "ip rule | grep 1000: | head -1 | sed 's/^1000:.from all/from all/'"), "\n")
				c.do = "ip rule del pref 1000 " + rule
			}
			run(t, c.ns, "sh", "-c", c.do)
			check(t, c.want)
		})
	}
	t.Run("link of a node in bridge mode", func(t *testing.T) {
		bridge(t, w.ns["node0"])
		if missing, err := w.fabric.Missing(); err != nil || len(missing) > 0 {
			t.Fatalf("missing of a node in bridge mode: %q, %v", missing, err)
		}
		run(t, fabricNS, "ip", "link", "del", nic.Link())
		check(t, "node0: its link eth0")
		if out := run(t, w.ns["node0"], "ip", "-o", "link", "show", "eth0"); !strings.Contains(out, "master azure0") {
			t.Errorf("eth0 has left the bridge: %s", out)
		}
	})
}
