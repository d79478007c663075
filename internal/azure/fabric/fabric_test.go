package fabric_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
)

func TestVirtualNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 3)
	w.listen("testvm", "0.0.0.0:22")
	vm := w.address("testvm")
	if _, remote, _ := w.mustAsk("node0", vm+":22"); remote != w.address("node0") {
		t.Errorf("the VM saw %s", remote)
	}
	if out := run(t, w.ns["node0"], "ping", "-c1", "-W20", vm); !strings.Contains(out, "ttl=64") {
		t.Errorf("hops between machines of a virtual network:\n%s", out)
	}
	// A pod's address, a secondary IP configuration, is reached in the VNet, and seen as itself.
	run(t, w.ns["node0"], "ip", "addr", "add", "10.13.64.5/32", "dev", "lo")
	w.listen("node0", "10.13.64.5:8080")
	if _, _, local := w.mustAsk("testvm", "10.13.64.5:8080"); local != "10.13.64.5:8080" {
		t.Errorf("reached %s", local)
	}
	c, err := w.dial("node0", "10.13.64.5", vm+":22")
	if err != nil {
		t.Fatal(err)
	}
	if f, err := c.ask(); err != nil || !strings.HasPrefix(f[1], "10.13.64.5:") {
		t.Errorf("the VM saw %v, %v", f, err)
	}
	// Every address, assigned or not, answers ARP with the host's MAC address.
	for _, addr := range []string{"10.13.64.1", w.address("node1"), "10.13.79.200"} {
		run(t, w.ns["node0"], "sh", "-c", "ping -c1 -W1 "+addr+" >/dev/null; true")
		if out := run(t, w.ns["node0"], "ip", "neigh", "show", addr); !strings.Contains(out, vnet.HostMAC) {
			t.Errorf("%s: %s", addr, out)
		}
	}
	// An unassigned address gets no connection, and neither does a source that is not the NIC's.
	if _, err := w.dialShort("node0", "", "10.13.79.200:22"); err == nil {
		t.Error("connected without a listener")
	}
	run(t, w.ns["node0"], "ip", "addr", "add", "10.13.70.1/32", "dev", "lo")
	if _, err := w.dialShort("node0", "10.13.70.1", vm+":22"); err == nil {
		t.Error("connected from a foreign address")
	}
	// Traffic inside is not tracked.
	flows, err := w.fabric.Namespace().Flows()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if f.Destination.Addr().String() == vm {
			t.Errorf("tracked: %+v", f)
		}
	}
}

func TestPeering(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	w.update(func(n *vnet.Network) error {
		prefix := netip.MustParsePrefix("172.17.0.0/16")
		n.VNets = append(n.VNets, vnet.VNet{Name: "other", AddressPrefixes: []netip.Prefix{prefix},
			Subnets: []vnet.Subnet{{Name: "s", Prefix: netip.MustParsePrefix("172.17.0.0/24")}}})
		_, err := n.AllocateNIC("server-b", "other", "s", 1)
		return err
	})
	w.attach("server-b", func(ns *netns.Namespace) error { return w.fabric.AttachNIC("server-b-nic", ns) })
	w.listen("server-b", "0.0.0.0:80")
	peer := func(vnets ...int) {
		w.update(func(n *vnet.Network) error {
			n.VNets[0].Peerings, n.VNets[1].Peerings = nil, nil
			for _, i := range vnets {
				n.VNets[i].Peerings = []vnet.Peering{{Name: "p", RemoteVNet: n.VNets[1-i].Name}}
			}
			return nil
		})
	}
	for _, c := range []struct {
		name  string
		sides []int
		want  bool
	}{{"none", nil, false}, {"one side", []int{0}, false}, {"both", []int{0, 1}, true}, {"none again", nil, false}} {
		peer(c.sides...)
		err := w.reach("node0", "", "172.17.0.4:80", c.want)
		if (err == nil) != c.want {
			t.Errorf("peering %s: %v", c.name, err)
		}
	}
	peer(0, 1)
	if _, remote, _ := w.mustAsk("node0", "172.17.0.4:80"); remote != w.address("node0") {
		t.Errorf("the peered machine saw %s", remote)
	}
}

// TestTakeOver ends the process's part of the fabric and starts another over the same namespaces.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 3)
	w.update(addService)
	w.node("node0")
	w.awaitAll(true, "node0")
	c, err := w.dial("client", "", vip+":80")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ask(); err != nil {
		t.Fatal(err)
	}
	// As a CNI plugin in bridge mode does.
	ns := w.ns["node1"]
	run(t, ns, "sh", "-c", "ip link add name azure0 type bridge && ip link set eth0 master azure0 && ip addr flush dev eth0 && ip link set azure0 up")
	if err := w.fabric.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err := c.ask(); err != nil || f[0] != "node0" {
		t.Errorf("without its process: %v %v", f, err)
	}
	if host, _, _ := w.mustAsk("client", vip+":80"); host != "node0" {
		t.Error("no new flow without the fabric's process")
	}
	w.start() // with the network of the beginning, which has no Service
	if w.up() != 1 {
		t.Error("health was not taken over")
	}
	for _, name := range []string{"node0", "node1", "testvm"} {
		if err := w.fabric.AttachNIC(name+"-nic", w.ns[name]); err != nil {
			t.Fatal(err)
		}
	}
	if f, err := c.ask(); err != nil || f[0] != "node0" {
		t.Errorf("after the take-over: %v %v", f, err)
	}
	if host, _, _ := w.mustAsk("client", vip+":80"); host != "node0" {
		t.Error("no new flow after the take-over")
	}
	if out := run(t, ns, "ip", "-4", "-o", "addr", "show", "eth0"); out != "" {
		t.Errorf("the address that the plugin moved is back: %s", out)
	}
	// A machine that was made anew is wired anew.
	ns.Remove()
	w.attach("node1", func(ns *netns.Namespace) error { return w.fabric.AttachNIC("node1-nic", ns) })
	w.listen("node1", "0.0.0.0:22")
	w.mustAsk("node0", w.address("node1")+":22")
}

func TestWireServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	get := func(from, url string) (int, string) {
		c := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: w.ns[from].Dial}}
		resp, err := c.Get(url)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if code, body := get("node0", "http://168.63.129.16/machine/?comp=goalstate"); code != 200 ||
		!strings.Contains(body, "<InstanceId>_node0</InstanceId>") || !strings.Contains(body, "<Incarnation>1<") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := get("node0", "http://168.63.129.16/"); code != 404 {
		t.Errorf("status %d", code)
	}
	if _, err := w.dialShort("node0", "", "168.63.129.16:81"); err == nil {
		t.Error("another port answers")
	}
	if _, err := w.dialShort("client", "", "168.63.129.16:80"); err == nil {
		t.Error("the internet reaches the host's own address")
	}
}

func TestUpdateRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	before, _ := w.fabric.Snapshot()
	boom := errors.New("boom")
	for _, change := range []func(*vnet.Network) error{
		func(n *vnet.Network) error { n.NICs = nil; return boom },
		func(n *vnet.Network) error {
			n.NICs[0].IPConfigs[0].Address = netip.MustParseAddr("10.13.64.1")
			return nil
		},
	} {
		if err := w.fabric.Update(change); err == nil {
			t.Error("no error")
		}
	}
	if after, _ := w.fabric.Snapshot(); after.NICs[0].IPConfigs[0] != before.NICs[0].IPConfigs[0] {
		t.Error("a refused change changed the network")
	}
	if err := w.fabric.AttachNIC("nope", w.ns["node0"]); err == nil {
		t.Error("attached an unknown NIC")
	}
	// Deleting a machine's NIC takes its link and routes away.
	w.update(func(n *vnet.Network) error { n.ReleaseNIC("node0-nic"); return nil })
	if names, err := w.fabric.Namespace().LinkNames(); err != nil || slices.Contains(names, "nic1") || !slices.Contains(names, "nic2") {
		t.Errorf("links %v, %v", names, err)
	}
	for range 2 {
		if err := w.fabric.DetachHost("client"); err != nil {
			t.Error(err)
		}
	}
}

// TestUpdateFails: where the kernel, or here the state file, does not take a change, the back ends that were up go on getting flows.
func TestUpdateFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.node("node0")
	w.awaitUp("node0")
	if err := os.Remove(w.cfg.StateFile); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.cfg.StateFile, 0o700); err != nil {
		t.Fatal(err)
	}
	other := func(n *vnet.Network) error { n.LoadBalancers[0].Probes[0].Count++; return nil }
	if err := w.fabric.Update(other); err == nil {
		t.Fatal("no error")
	}
	if n, _ := w.fabric.Snapshot(); n.LoadBalancers[0].Probes[0].Count != 2 || w.up() != 1 {
		t.Errorf("after the change that failed: probe %+v, %d back ends up", n.LoadBalancers[0].Probes[0], w.up())
	}
	w.mustAsk("client", vip+":80")
	if err := os.Remove(w.cfg.StateFile); err != nil {
		t.Fatal(err)
	}
	w.update(other)
	w.awaitUp("node0")
	w.mustAsk("client", vip+":80")
}

func TestNoGoroutineLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("world", func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.update(addService)
	})
	eventually.Succeeds(t, 30*time.Second, func() error {
		if now := runtime.NumGoroutine(); now > before {
			buf := make([]byte, 1<<16)
			return fmt.Errorf("%d goroutines, %d before:\n%s", now, before, buf[:runtime.Stack(buf, true)])
		}
		return nil
	})
}
