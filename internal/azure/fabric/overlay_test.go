package fabric_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/azure/vnet"
)

// overlayWorld has two nodes with parts of an overlay, and a pod's address on each.
func overlayWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 2, 1)
	w.update(func(n *vnet.Network) error {
		n.Overlay = netip.MustParsePrefix("10.244.0.0/16")
		for _, node := range []string{"node0", "node1"} {
			if err := n.AllocateOverlay(node+"-nic", 24); err != nil {
				return err
			}
		}
		return nil
	})
	for node, pod := range map[string]string{"node0": pod0, "node1": pod1} {
		run(t, w.ns[node], "ip", "addr", "add", pod+"/32", "dev", "lo")
		w.listen(node, pod+":8080")
	}
	w.listen("testvm", "0.0.0.0:22")
	return w
}

// The first address of a part and the last one of another are pods'.
const pod0, pod1 = "10.244.0.0", "10.244.1.255"

// TestOverlay: pods reach each other with their own addresses, without a hop; nodes reach pods; others do not, in either direction.
func TestOverlay(t *testing.T) {
	t.Parallel()
	w := overlayWorld(t)
	ask := func(from, local, to string) string {
		t.Helper()
		c, err := w.dial(from, local, to)
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.ask()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(f[1], ":")[0]
	}
	refused := func(from, local, to string) {
		t.Helper()
		if _, err := w.dialShort(from, local, to); err == nil {
			t.Errorf("%s reaches %s from %s", from, to, local)
		}
	}
	if got := ask("node0", pod0, pod1+":8080"); got != pod0 {
		t.Errorf("a pod sees %s, want the other pod's address", got)
	}
	if got := ask("node1", w.address("node1"), pod0+":8080"); got != w.address("node1") {
		t.Errorf("a pod sees %s, want the node's address", got)
	}
	if out := run(t, w.ns["node0"], "ping", "-c1", "-W20", "-I", pod0, pod1); !strings.Contains(out, "ttl=64") {
		t.Errorf("hops between nodes:\n%s", out)
	}
	vm := w.address("testvm")
	refused("testvm", "", pod1+":8080")     // no route
	refused("client", "", pod1+":8080")     // not public
	refused("node0", pod0, vm+":22")        // no way back
	refused("node0", "", "10.244.7.1:8080") // no node has it
	run(t, w.ns["node0"], "ip", "addr", "add", "10.244.1.9/32", "dev", "lo")
	refused("node0", "10.244.1.9", pod1+":8080") // a pod of another node
	w.listen("server", "0.0.0.0:80")
	refused("node0", pod0, server+":80")
	refused("node0", pod0, "168.63.129.16:80")

	hop := netip.MustParseAddr(w.address("node1"))
	w.update(func(n *vnet.Network) error {
		n.RouteTables = []vnet.RouteTable{{Name: "to-pods", Routes: []vnet.UserRoute{{Name: "all", Prefix: n.Overlay,
			NextHopType: vnet.NextHopAppliance, NextHop: hop}}}}
		n.VNets[0].Subnets[1].RouteTable = "to-pods"
		return nil
	})
	if got := ask("testvm", "", pod1+":8080"); got != vm {
		t.Errorf("by a route a pod sees %s, want the VM's address", got)
	}
	if got := ask("node1", pod1, vm+":22"); got != pod1 {
		t.Errorf("the VM sees %s, want the pod's address", got)
	}
	refused("testvm", "", pod0+":8080") // of another node than the route's
}

// TestOverlaySecurity: a security group sees pods' addresses, and its tag VirtualNetwork holds them.
func TestOverlaySecurity(t *testing.T) {
	t.Parallel()
	w := overlayWorld(t)
	reach := func(wanted bool) bool { return w.reach("node0", pod0, pod1+":8080", wanted) == nil }
	set := func(rules ...vnet.SecurityRule) {
		w.update(func(n *vnet.Network) error {
			n.SecurityGroups = []vnet.SecurityGroup{{Name: "g", Rules: rules}}
			n.NICs[1].SecurityGroup = "g"
			return nil
		})
	}
	set()
	if !reach(true) {
		t.Error("the default rules deny pods")
	}
	rule := vnet.SecurityRule{Name: "r", Priority: 100, Direction: vnet.DirectionInbound, Access: vnet.AccessDeny, Protocol: vnet.Any,
		Sources: []string{"10.244.0.0/16"}}
	set(rule)
	if reach(false) {
		t.Error("a rule against pods lets them pass")
	}
	rule.Sources = []string{"10.13.0.0/16"}
	set(rule)
	if !reach(true) {
		t.Error("a rule against nodes denies pods")
	}
}

// TestMetadata: the Instance Metadata Service answers machines about themselves, and the internet's hosts not at all.
func TestMetadata(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 2)
	get := func(from, path string, header ...string) (int, string) {
		t.Helper()
		c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: w.ns[from].Dial}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://169.254.169.254"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := c.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	const instance = "/metadata/instance?api-version=2021-02-01"
	code, body := get("node0", instance, "Metadata", "true")
	var said struct {
		Compute struct{ Name, OSType string }
		Network struct {
			Interface []struct {
				IPv4 struct {
					IPAddress []struct{ PrivateIPAddress string }
					Subnet    []struct{ Address, Prefix string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &said); code != 200 || err != nil || said.Compute.Name != "node0" || len(said.Network.Interface) != 1 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if i := said.Network.Interface[0].IPv4; len(i.IPAddress) != 2 || i.IPAddress[0].PrivateIPAddress != w.address("node0") ||
		i.Subnet[0].Address != "10.13.64.0" || i.Subnet[0].Prefix != "20" {
		t.Errorf("%+v", i)
	}
	for _, tt := range []struct {
		path   string
		header []string
		code   int
		want   string
	}{
		{"/metadata/instance/compute/name?api-version=2021-02-01&format=text", []string{"Metadata", "true"}, 200, "node0"},
		{"/metadata/instance/network/interface/0/ipv4/ipAddress/1/privateIpAddress?api-version=2021-02-01&format=text",
			[]string{"Metadata", "True"}, 200, "10.13.64.5"},
		{"/metadata/instance/network/interface/7?api-version=2021-02-01", []string{"Metadata", "true"}, 404, "Not found"},
		{"/metadata/versions", []string{"Metadata", "true"}, 200, "2021-02-01"},
		{"/metadata/identity/oauth2/token?api-version=2018-02-01&resource=x", []string{"Metadata", "true"}, 400, "Identity not found"},
		{"/metadata/instance", []string{"Metadata", "true"}, 400, "api-version was not specified"},
		{instance, nil, 400, "Required metadata header not specified"},
		{instance, []string{"Metadata", "true", "X-Forwarded-For", "10.0.0.1"}, 400, "Required metadata header"},
		{"/", []string{"Metadata", "true"}, 404, "Not found"},
	} {
		if code, body := get("node0", tt.path, tt.header...); code != tt.code || !strings.Contains(body, tt.want) {
			t.Errorf("%s %v: %d %s, want %d %s", tt.path, tt.header, code, body, tt.code, tt.want)
		}
	}
	if _, err := w.dialShort("client", "", "169.254.169.254:80"); err == nil {
		t.Error("the internet reaches the service")
	}
	if _, err := w.dialShort("node0", "", "169.254.169.254:443"); err == nil {
		t.Error("another port answers")
	}
}
