package arm_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
)

// A client talks to a server over a network.
type client struct {
	t       *testing.T
	url     string
	server  *arm.Server
	mu      sync.Mutex
	network vnet.Network
}

const (
	token = "secret"
	group = "/subscriptions/e7da9914-9b05-4891-893c-546cb7b0422e/resourceGroups/MC_akstest/providers/Microsoft.Network"
)

func newClient(t *testing.T) *client {
	n := vnet.Network{Subscription: "e7da9914-9b05-4891-893c-546cb7b0422e", ResourceGroup: "akstest", NodeResourceGroup: "MC_akstest",
		Location: "westeurope", DefaultOutbound: vnet.DefaultOutboundAddress,
		VNets: []vnet.VNet{{Name: "aksVnet", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.13.0.0/16")},
			Subnets: []vnet.Subnet{{Name: "aks", Prefix: netip.MustParsePrefix("10.13.76.0/24")}}}},
		SecurityGroups: []vnet.SecurityGroup{{Name: "aks-agentpool-nsg"}},
	}
	if _, err := n.AllocateNIC("aks-nodepool1-0", "aksVnet", "aks", 2); err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, network: n}
	c.server = &arm.Server{Token: token,
		Network: func() vnet.Network {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.network.Clone()
		},
		Update: func(change func(*vnet.Network) error) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			next := c.network.Clone()
			err := change(&next)
			if err == nil {
				c.network = next
			}
			return err
		}}
	s := httptest.NewServer(c.server)
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// do sends a request and returns the answer's status and body.
func (c *client) do(method, path, body string, headers ...string) (int, map[string]any) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path+"?api-version=2024-05-01", strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var o map[string]any
	if len(data) > 0 {
		if err := json.Unmarshal(data, &o); err != nil {
			c.t.Fatalf("%s %s: %v in %q", method, path, err, data)
		}
	}
	return answer.StatusCode, o
}

// want sends a request whose answer must have this status, and returns its body.
func (c *client) want(status int, method, path, body string, headers ...string) map[string]any {
	c.t.Helper()
	got, o := c.do(method, path, body, headers...)
	if got != status {
		c.t.Fatalf("%s %s: status %d, not %d: %v", method, path, got, status, o)
	}
	return o
}

// code returns the code of an error.
func code(o map[string]any) string {
	e, _ := o["error"].(map[string]any)
	s, _ := e["code"].(string)
	return s
}

// at returns what a path of names and numbers leads to.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			o, _ := v.(map[string]any)
			v = o[p]
		case int:
			list, _ := v.([]any)
			if p >= len(list) {
				return nil
			}
			v = list[p]
		}
	}
	return v
}

const publicIP = `{"location":"westeurope","sku":{"name":"Standard"},"tags":{"k8s-azure-service":"default/web"},
	"properties":{"publicIPAllocationMethod":"Static","publicIPAddressVersion":"IPv4","dnsSettings":{"domainNameLabel":"web"}}}`

var balancer = strings.ReplaceAll(`{"location":"westeurope","sku":{"name":"Standard"},"properties":{
	"frontendIPConfigurations":[{"name":"a1","properties":{"publicIPAddress":{"id":"GROUP/publicIPAddresses/kubernetes-a1"}}}],
	"backendAddressPools":[{"name":"kubernetes"}],
	"loadBalancingRules":[{"name":"a1-TCP-80","properties":{"protocol":"Tcp","frontendPort":80,"backendPort":80,"enableFloatingIP":true,
		"enableTcpReset":true,"idleTimeoutInMinutes":4,"disableOutboundSnat":true,"loadDistribution":"Default",
		"frontendIPConfiguration":{"id":"GROUP/loadBalancers/kubernetes/frontendIPConfigurations/a1"},
		"backendAddressPool":{"id":"GROUP/loadBalancers/kubernetes/backendAddressPools/kubernetes"},
		"probe":{"id":"GROUP/loadBalancers/kubernetes/probes/a1-TCP-80"}}}],
	"probes":[{"name":"a1-TCP-80","properties":{"protocol":"Tcp","port":30080,"intervalInSeconds":5,"probeThreshold":2}}]}}`, "GROUP", group)

// TestServiceOfProvider: the requests by which Azure's provider gives a Service its load balancer, and takes it away, make and remove the
// network's front end, rule, probe and members.
func TestServiceOfProvider(t *testing.T) {
	c := newClient(t)
	ip := c.want(http.StatusCreated, "PUT", group+"/publicIPAddresses/kubernetes-a1", publicIP)
	address, _ := at(ip, "properties", "ipAddress").(string)
	if address == "" || at(ip, "tags", "k8s-azure-service") != "default/web" || at(ip, "sku", "name") != "Standard" ||
		at(ip, "properties", "publicIPAllocationMethod") != "Static" || at(ip, "properties", "dnsSettings", "domainNameLabel") != "web" {
		t.Errorf("the public address is %v", ip)
	}
	lb := c.want(http.StatusCreated, "PUT", group+"/loadBalancers/kubernetes", balancer)
	nic := c.want(http.StatusOK, "GET", group+"/networkInterfaces/aks-nodepool1-0-nic", "")
	pool := at(lb, "properties", "backendAddressPools", 0, "id")
	at(nic, "properties", "ipConfigurations", 0, "properties").(map[string]any)["loadBalancerBackendAddressPools"] =
		[]any{map[string]any{"id": pool}}
	text, err := json.Marshal(nic)
	if err != nil {
		t.Fatal(err)
	}
	c.want(http.StatusOK, "PUT", group+"/networkInterfaces/aks-nodepool1-0-nic", string(text))
	n := c.network
	if len(n.LoadBalancers) != 1 || len(n.LoadBalancers[0].BackendPools[0].Members) != 1 || n.LoadBalancers[0].Rules[0].Probe != "a1-TCP-80" ||
		n.LoadBalancers[0].Probes[0].Count != 2 || n.LoadBalancers[0].Frontends[0].Address.String() != address {
		t.Fatalf("the network's load balancers are %+v", n.LoadBalancers)
	}
	got := c.want(http.StatusOK, "GET", group+"/loadBalancers/kubernetes", "")
	if at(got, "properties", "backendAddressPools", 0, "properties", "backendIPConfigurations", 0, "id") == nil ||
		at(got, "properties", "loadBalancingRules", 0, "properties", "disableOutboundSnat") != true {
		t.Errorf("the load balancer is %v", got)
	}
	if at(got, "etag") != at(lb, "etag") {
		t.Error("a member changes the load balancer's ETag")
	}
	// The provider writes back what it has read. Members stay.
	if text, err = json.Marshal(got); err != nil {
		t.Fatal(err)
	}
	c.want(http.StatusOK, "PUT", group+"/loadBalancers/kubernetes", string(text), "If-Match", got["etag"].(string))
	if members := c.network.LoadBalancers[0].BackendPools[0].Members; len(members) != 1 {
		t.Errorf("members are %v after a PUT of what GET said", members)
	}
	// Without rules the pool names none.
	properties := at(got, "properties").(map[string]any)
	properties["loadBalancingRules"], properties["probes"] = []any{}, []any{}
	if text, err = json.Marshal(got); err != nil {
		t.Fatal(err)
	}
	got = c.want(http.StatusOK, "PUT", group+"/loadBalancers/kubernetes", string(text))
	if rules := at(got, "properties", "backendAddressPools", 0, "properties", "loadBalancingRules"); rules != nil {
		t.Errorf("the pool has rules %v that are gone", rules)
	}
	if o := c.want(http.StatusBadRequest, "DELETE", group+"/publicIPAddresses/kubernetes-a1", ""); code(o) != "PublicIPAddressCannotBeDeleted" {
		t.Errorf("deleting an address in use: %v", o)
	}
	c.want(http.StatusAccepted, "DELETE", group+"/loadBalancers/kubernetes", "")
	c.want(http.StatusAccepted, "DELETE", group+"/publicIPAddresses/kubernetes-a1", "")
	c.want(http.StatusNoContent, "DELETE", group+"/publicIPAddresses/kubernetes-a1", "")
	if n := c.network; len(n.LoadBalancers)+len(n.PublicIPs) != 0 || len(n.Attributes) > 1 {
		t.Errorf("left over: %+v", n)
	}
}

// TestRefused: what cannot be has Azure's status and code, and changes nothing.
func TestRefused(t *testing.T) {
	put := func(o string) string { return strings.ReplaceAll(o, "GROUP", group) }
	for _, test := range []struct {
		name, method, path, body string
		status                   int
		code                     string
		headers                  []string
	}{
		{"wrong token", "GET", group + "/loadBalancers", "", 401, "InvalidAuthenticationToken", []string{"Authorization", "Bearer no"}},
		{"no such resource", "GET", group + "/loadBalancers/web", "", 404, "ResourceNotFound", nil},
		{"no such group", "GET", strings.ReplaceAll(group, "MC_akstest", "other") + "/loadBalancers", "", 404, "ResourceGroupNotFound", nil},
		{"no such type", "PUT", group + "/azureFirewalls/f", "{}", 404, "NotFound", nil},
		{"missing reference", "PUT", group + "/loadBalancers/kubernetes", balancer, 400, "InvalidResourceReference", nil},
		{"no JSON", "PUT", group + "/loadBalancers/kubernetes", "{", 400, "InvalidRequestContent", nil},
		{"null", "PUT", group + "/loadBalancers/kubernetes", "null", 400, "InvalidRequestContent", nil},
		{"wrong type of a field", "PUT", group + "/loadBalancers/kubernetes", `{"properties":{"probes":3}}`, 400, "InvalidRequestContent", nil},
		{"old ETag", "PUT", group + "/networkSecurityGroups/aks-agentpool-nsg", "{}", 412, "PreconditionFailed", []string{"If-Match", `W/"1"`}},
		{"exists", "PUT", group + "/networkSecurityGroups/aks-agentpool-nsg", "{}", 412, "PreconditionFailed", []string{"If-None-Match", "*"}},
		{"a new machine", "PUT", group + "/networkInterfaces/n", "{}", 400, "OperationNotAllowed", nil},
		{"a NIC in use", "DELETE", group + "/networkInterfaces/aks-nodepool1-0-nic", "", 400, "NicInUse", nil},
		{"a hostile name", "PUT", group + "/publicIPAddresses/a%22%3B%20flush%20ruleset", publicIP, 400, "InvalidResourceName", nil},
		{"a hostile rule's name", "PUT", group + "/networkSecurityGroups/aks-agentpool-nsg/securityRules/x%0Ay", `{"properties":{"priority":100}}`, 400,
			"InvalidResourceName", nil},
		{"an invalid rule", "PUT", group + "/networkSecurityGroups/aks-agentpool-nsg/securityRules/x", `{"properties":{"priority":1}}`, 400,
			"InvalidRequestFormat", nil},
		{"inbound NAT rules", "PUT", group + "/loadBalancers/kubernetes", put(`{"sku":{"name":"Standard"},"properties":{"inboundNatRules":[{"name":"r"}]}}`),
			400, "NotSupportedByLab", nil},
		{"a name of another resource group", "PUT", inGroup("akstest") + "/networkSecurityGroups/aks-agentpool-nsg", "{}", 400, "NotSupportedByLab", nil},
		{"a resource group with resources", "DELETE", "/subscriptions/e7da9914-9b05-4891-893c-546cb7b0422e/resourceGroups/akstest", "", 400,
			"NotSupportedByLab", nil},
		{"a hostile resource group", "PUT", "/subscriptions/e7da9914-9b05-4891-893c-546cb7b0422e/resourceGroups/a%22b", "{}", 400,
			"InvalidResourceGroup", nil},
		{"POST", "POST", group + "/loadBalancers/kubernetes", "{}", 405, "MethodNotAllowed", nil},
		{"too long", "PUT", group + "/loadBalancers/kubernetes", `{"x":"` + strings.Repeat("a", 5<<20) + `"}`, 413, "RequestEntityTooLarge", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newClient(t)
			before, _ := json.Marshal(c.network)
			o := c.want(test.status, test.method, test.path, test.body, test.headers...)
			if code(o) != test.code {
				t.Errorf("code %q, not %q: %v", code(o), test.code, o)
			}
			if after, _ := json.Marshal(c.network); string(after) != string(before) {
				t.Errorf("the network changed to %s", after)
			}
		})
	}
}

// TestParts: a part of a resource is written, read and removed by its own id, and PATCH replaces tags alone.
func TestParts(t *testing.T) {
	c := newClient(t)
	const nsg, rule = group + "/networkSecurityGroups/aks-agentpool-nsg", group + "/networkSecurityGroups/aks-agentpool-nsg/securityRules/ssh"
	const body = `{"properties":{"priority":300,"direction":"Inbound","access":"Deny","protocol":"Tcp","sourceAddressPrefix":"*",
		"sourcePortRange":"*","destinationAddressPrefix":"*","destinationPortRange":"22","description":"no shells"}}`
	c.want(http.StatusCreated, "PUT", rule, body)
	c.want(http.StatusOK, "PUT", rule, body)
	if o := c.want(http.StatusOK, "GET", rule, ""); at(o, "properties", "description") != "no shells" {
		t.Errorf("the rule is %v", o)
	}
	if rules := c.network.SecurityGroups[0].Rules; len(rules) != 1 || rules[0].DestinationPorts[0].First != 22 || rules[0].Sources != nil {
		t.Errorf("the group's rules are %+v", rules)
	}
	before := c.want(http.StatusOK, "GET", nsg, "")
	after := c.want(http.StatusOK, "PATCH", nsg, `{"tags":{"owner":"me"},"properties":{"securityRules":[]}}`)
	if at(after, "tags", "owner") != "me" || len(c.network.SecurityGroups[0].Rules) != 1 || before["etag"] == after["etag"] {
		t.Errorf("after PATCH: %v", after)
	}
	c.want(http.StatusAccepted, "DELETE", rule, "")
	c.want(http.StatusNoContent, "DELETE", rule, "")
	if rules := c.network.SecurityGroups[0].Rules; len(rules) != 0 {
		t.Errorf("the group's rules are %+v", rules)
	}
	if o := c.want(http.StatusOK, "GET", nsg, ""); at(o, "tags", "owner") != "me" {
		t.Errorf("the tags are gone: %v", o)
	}
}

// TestAttributes: what another one changes in the network is not hidden by what a client wrote before.
func TestAttributes(t *testing.T) {
	c := newClient(t)
	const subnet = "/subscriptions/e7da9914-9b05-4891-893c-546cb7b0422e/resourceGroups/akstest/providers/Microsoft.Network/virtualNetworks/aksVnet/subnets/aks"
	c.want(http.StatusOK, "PUT", subnet, `{"properties":{"addressPrefix":"10.13.76.0/24","privateEndpointNetworkPolicies":"Disabled",
		"networkSecurityGroup":{"id":"`+group+`/networkSecurityGroups/aks-agentpool-nsg"}}}`)
	if c.network.VNets[0].Subnets[0].SecurityGroup != "aks-agentpool-nsg" {
		t.Fatalf("the network is %+v", c.network.VNets)
	}
	c.network.VNets[0].Subnets[0].SecurityGroup = ""
	o := c.want(http.StatusOK, "GET", subnet, "")
	if at(o, "properties", "networkSecurityGroup") != nil || at(o, "properties", "privateEndpointNetworkPolicies") != "Disabled" {
		t.Errorf("the subnet is %v", o)
	}
}

// TestIdentity: the managed identity's endpoint gives the token for the secret, and nothing without it.
func TestIdentity(t *testing.T) {
	c := newClient(t)
	o := c.want(http.StatusOK, "GET", "/msi/token", "", "X-IDENTITY-HEADER", token)
	access, _ := o["access_token"].(string)
	c.want(http.StatusOK, "GET", group+"/loadBalancers", "", "Authorization", "Bearer "+access)
	c.want(http.StatusUnauthorized, "GET", "/msi/token", "", "X-IDENTITY-HEADER", "")
}

// inGroup returns where a resource group's network resources are.
func inGroup(name string) string { return strings.ReplaceAll(group, "MC_akstest", name) }

// TestResourceGroup shows that clients create resource groups, and keep resources of all types in them, which refer to each other.
func TestResourceGroup(t *testing.T) {
	c := newClient(t)
	own, mine := "/subscriptions/"+c.network.Subscription+"/resourceGroups/Mine", inGroup("Mine")
	c.want(http.StatusNotFound, "PUT", mine+"/publicIPAddresses/kubernetes-a1", publicIP)
	c.want(http.StatusCreated, "PUT", own, `{"location":"westeurope","tags":{"owner":"me"}}`)
	if o := c.want(http.StatusOK, "PUT", own, `{"location":"westeurope","tags":{"owner":"you"}}`); at(o, "tags", "owner") != "you" || o["name"] != "Mine" {
		t.Errorf("the resource group is %v", o)
	}
	lb := strings.ReplaceAll(balancer, group, mine)
	c.want(http.StatusCreated, "PUT", mine+"/publicIPAddresses/kubernetes-a1", publicIP)
	c.want(http.StatusCreated, "PUT", mine+"/loadBalancers/kubernetes", lb)
	c.want(http.StatusCreated, "PUT", mine+"/routeTables/aks-routes", `{"location":"westeurope","properties":{"routes":[]}}`)
	c.want(http.StatusCreated, "PUT", mine+"/natGateways/aks-nat", `{"location":"westeurope","properties":{}}`)
	c.want(http.StatusCreated, "PUT", mine+"/networkSecurityGroups/aks-group", `{"location":"westeurope","properties":{"securityRules":[]}}`)
	subnet := inGroup("akstest") + "/virtualNetworks/aksVnet/subnets/own"
	c.want(http.StatusCreated, "PUT", subnet, strings.ReplaceAll(`{"properties":{"addressPrefix":"10.13.77.0/24","routeTable":{"id":"MINE/routeTables/aks-routes"},
		"natGateway":{"id":"MINE/natGateways/aks-nat"},"networkSecurityGroup":{"id":"MINE/networkSecurityGroups/aks-group"}}}`, "MINE", mine))
	nic := c.want(http.StatusOK, "GET", group+"/networkInterfaces/aks-nodepool1-0-nic", "")
	at(nic, "properties", "ipConfigurations", 0, "properties").(map[string]any)["loadBalancerBackendAddressPools"] =
		[]any{map[string]any{"id": mine + "/loadBalancers/kubernetes/backendAddressPools/kubernetes"}}
	text, err := json.Marshal(nic)
	if err != nil {
		t.Fatal(err)
	}
	c.want(http.StatusOK, "PUT", group+"/networkInterfaces/aks-nodepool1-0-nic", string(text))
	if members := c.network.LoadBalancers[0].BackendPools[0].Members; len(members) != 1 {
		t.Errorf("the pool's members are %v", members)
	}
	o := c.want(http.StatusOK, "GET", subnet, "")
	for field, want := range map[string]string{"routeTable": "/routeTables/aks-routes", "natGateway": "/natGateways/aks-nat",
		"networkSecurityGroup": "/networkSecurityGroups/aks-group"} {
		if got := at(o, "properties", field, "id"); got != mine+want {
			t.Errorf("%s is %v", field, got)
		}
	}
	o = c.want(http.StatusOK, "GET", mine+"/loadBalancers/kubernetes", "")
	if got := at(o, "properties", "frontendIPConfigurations", 0, "properties", "publicIPAddress", "id"); got != mine+"/publicIPAddresses/kubernetes-a1" {
		t.Errorf("the front end's address is %v", got)
	}
	for _, kind := range []string{"loadBalancers", "publicIPAddresses", "routeTables", "natGateways", "networkSecurityGroups"} {
		if o := c.want(http.StatusOK, "GET", mine+"/"+kind, ""); at(o, "value", 0) == nil || at(o, "value", 1) != nil {
			t.Errorf("%s of the group: %v", kind, o)
		}
	}
	c.want(http.StatusBadRequest, "DELETE", own, "")
	c.want(http.StatusAccepted, "DELETE", subnet, "")
	for _, name := range []string{"loadBalancers/kubernetes", "publicIPAddresses/kubernetes-a1", "routeTables/aks-routes", "natGateways/aks-nat",
		"networkSecurityGroups/aks-group"} {
		c.want(http.StatusAccepted, "DELETE", mine+"/"+name, "")
	}
	c.want(http.StatusOK, "DELETE", own, "")
	c.want(http.StatusNotFound, "GET", own, "")
}

// FuzzPut: whatever a client writes, the answer has a status, the network stays valid, and the same GET says the same twice.
func FuzzPut(f *testing.F) {
	f.Add("loadBalancers/kubernetes", balancer)
	f.Add("publicIPAddresses/kubernetes-a1", publicIP)
	f.Add("networkSecurityGroups/aks-agentpool-nsg", `{"properties":{"securityRules":[{"name":"a","properties":null},null]}}`)
	f.Add("networkInterfaces/aks-nodepool1-0-nic", `{"properties":{"ipConfigurations":[null,{"name":"ipconfig1"}]}}`)
	f.Fuzz(func(t *testing.T, path, body string) {
		c := newClient(t)
		kind, name, _ := strings.Cut(path, "/")
		n := c.network.Clone()
		p := arm.Path{Group: "MC_akstest", Kind: kind, Name: name}
		_, _, err := arm.Put(&n, p, []byte(body), arm.Conditions{})
		if err != nil {
			return
		}
		if err := n.Validate(); err != nil {
			t.Fatal(err)
		}
		if _, err := arm.Get(n, p); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBasicRule shows that a Basic load balancer's rules say nothing about outbound flows, where a client writes false, as Azure's do.
func TestBasicRule(t *testing.T) {
	c := newClient(t)
	const lb = group + "/loadBalancers/kubernetes"
	c.want(http.StatusCreated, "PUT", group+"/publicIPAddresses/kubernetes-a1", publicIP)
	for sku, want := range map[string]any{"Basic": nil, "Standard": false} {
		network := c.network.Clone()
		body := strings.NewReplacer(`"Standard"`, `"`+sku+`"`, `"disableOutboundSnat":true`, `"disableOutboundSnat":false`).Replace(balancer)
		c.want(http.StatusCreated, "PUT", lb, body)
		o := c.want(http.StatusOK, "GET", lb, "")
		if got := at(o, "properties", "loadBalancingRules", 0, "properties", "disableOutboundSnat"); got != want {
			t.Errorf("of SKU %s: %v, not %v", sku, got, want)
		}
		c.network = network
	}
}
