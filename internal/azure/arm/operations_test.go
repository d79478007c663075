package arm_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	azurearm "github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
)

// ask sends a request without a network, so that a test's clock may stand still. It returns the answer, and its body.
func (c *client) ask(t *testing.T, status int, method, path, body string) (http.Header, map[string]any) {
	t.Helper()
	if !strings.Contains(path, "?") {
		path += "?api-version=2024-05-01"
	}
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	c.server.ServeHTTP(w, r)
	if w.Code != status {
		t.Fatalf("%s %s: status %d, not %d: %s", method, path, w.Code, status, w.Body)
	}
	var o map[string]any
	if w.Body.Len() > 0 {
		if err := json.Unmarshal(w.Body.Bytes(), &o); err != nil {
			t.Fatal(err)
		}
	}
	return w.Header(), o
}

// TestOperation follows operations that last: meanwhile the resource is Updating, and others may not change it.
func TestOperation(t *testing.T) {
	c := newClient(t)
	c.server.Settings = func() arm.Settings { return arm.Settings{Operation: 14 * time.Second} }
	synctest.Test(t, func(t *testing.T) {
		const ip = group + "/publicIPAddresses/kubernetes-a1"
		state := func() any {
			_, o := c.ask(t, 200, "GET", ip, "")
			return at(o, "properties", "provisioningState")
		}
		h, o := c.ask(t, 201, "PUT", ip, publicIP)
		operation := h.Get("Azure-AsyncOperation")
		if !strings.Contains(operation, "/providers/Microsoft.Network/locations/westeurope/operations/") || h.Get("Retry-After") != "10" ||
			at(o, "properties", "provisioningState") != "Updating" || state() != "Updating" {
			t.Errorf("headers %v, resource %v", h, o)
		}
		time.Sleep(10 * time.Second)
		h, o = c.ask(t, 200, "GET", operation, "")
		if o["status"] != "InProgress" || h.Get("Retry-After") != "4" {
			t.Errorf("after 10 s: headers %v, operation %v", h, o)
		}
		if _, o := c.ask(t, 409, "DELETE", ip, ""); code(o) != "AnotherOperationInProgress" {
			t.Errorf("a second change: %v", o)
		}
		time.Sleep(4 * time.Second)
		h, o = c.ask(t, 200, "GET", operation, "")
		if o["status"] != "Succeeded" || h.Get("Retry-After") != "" || state() != "Succeeded" {
			t.Errorf("after 14 s: headers %v, operation %v, state %v", h, o, state())
		}
		if h, _ = c.ask(t, 200, "PUT", ip, publicIP); h.Get("Azure-AsyncOperation") == "" {
			t.Error("the change of a resource has no operation")
		}
		time.Sleep(14 * time.Second)
		h, _ = c.ask(t, 202, "DELETE", ip, "")
		result := h.Get("Location")
		if again, _ := c.ask(t, 202, "GET", result, ""); again.Get("Location") != result || again.Get("Retry-After") != "10" {
			t.Errorf("the result meanwhile: headers %v", again)
		}
		time.Sleep(14 * time.Second)
		c.ask(t, 204, "GET", result, "")
		c.ask(t, 204, "DELETE", ip, "")
		c.ask(t, 404, "GET", strings.Replace(result, "operationResults/", "operationResults/0", 1), "")
	})
}

// TestFailedOperation shows that a change which the kernel refuses is accepted and then fails.
func TestFailedOperation(t *testing.T) {
	c := newClient(t)
	const nsg = group + "/networkSecurityGroups/aks-agentpool-nsg"
	update := c.server.Update
	c.server.Update = func(change func(*vnet.Network) error) error {
		return update(func(n *vnet.Network) error { return errors.Join(change(n), errors.New("the kernel refuses")) })
	}
	h, _ := c.ask(t, 200, "PUT", nsg, `{"location":"westeurope","properties":{"securityRules":[]}}`)
	if _, o := c.ask(t, 200, "GET", h.Get("Azure-AsyncOperation"), ""); o["status"] != "Failed" || code(o) != "InternalServerError" ||
		at(o, "error", "message") != "the kernel refuses" {
		t.Errorf("the operation is %v", o)
	}
	if _, o := c.ask(t, 200, "GET", nsg, ""); at(o, "properties", "provisioningState") != "Failed" {
		t.Errorf("the group is %v", o)
	}
	c.server.Update = update
	c.ask(t, 200, "PUT", nsg, `{"location":"westeurope","properties":{"securityRules":[]}}`)
	if _, o := c.ask(t, 200, "GET", nsg, ""); at(o, "properties", "provisioningState") != "Succeeded" {
		t.Errorf("after a change that succeeds: %v", o)
	}
}

// TestPoller shows that the poller of Azure's SDK follows operations, of which none makes it wait.
func TestPoller(t *testing.T) {
	c := newClient(t)
	tls, options := c.sdk(t)
	create := func() *armnetwork.ClientFactory {
		f, err := armnetwork.NewClientFactory(c.network.Subscription, tls, options)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	sdk, start := create(), time.Now()
	made, err := sdk.NewPublicIPAddressesClient().BeginCreateOrUpdate(t.Context(), "MC_akstest", "own", armnetwork.PublicIPAddress{
		Location: new("westeurope"), SKU: &armnetwork.PublicIPAddressSKU{Name: new(armnetwork.PublicIPAddressSKUNameStandard)},
		Properties: &armnetwork.PublicIPAddressPropertiesFormat{PublicIPAllocationMethod: new(armnetwork.IPAllocationMethodStatic)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if made.Done() {
		t.Error("the operation ended with the request's answer")
	}
	ip, err := made.PollUntilDone(t.Context(), nil)
	if err != nil || *ip.Properties.ProvisioningState != armnetwork.ProvisioningStateSucceeded || ip.Properties.IPAddress == nil {
		t.Errorf("the address is %+v: %v", ip.Properties, err)
	}
	gone, err := sdk.NewPublicIPAddressesClient().BeginDelete(t.Context(), "MC_akstest", "own", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.PollUntilDone(t.Context(), nil); err != nil {
		t.Error(err)
	}
	var missing *azcore.ResponseError
	if _, err := sdk.NewPublicIPAddressesClient().Get(t.Context(), "MC_akstest", "own", nil); !errors.As(err, &missing) || missing.StatusCode != http.StatusNotFound {
		t.Errorf("after the deletion: %v", err)
	}
	const defaultFrequency = 30 * time.Second // of PollUntilDone
	if took := time.Since(start); took > defaultFrequency {
		t.Errorf("two operations took %s", took)
	}
}

// TestEffective shows that Azure's SDK reads the effective security groups and routes of a NIC.
func TestEffective(t *testing.T) {
	c := newClient(t)
	c.network.NICs[0].SecurityGroup = "aks-agentpool-nsg"
	credential, options := c.sdk(t)
	nics, err := armnetwork.NewInterfacesClient(c.network.Subscription, credential, options)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := nics.BeginListEffectiveNetworkSecurityGroups(t.Context(), "MC_akstest", "aks-nodepool1-0-nic", nil)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := asked.PollUntilDone(t.Context(), nil)
	if err != nil || len(groups.Value) != 1 || len(groups.Value[0].EffectiveSecurityRules) != 6 ||
		*groups.Value[0].NetworkSecurityGroup.ID != group+"/networkSecurityGroups/aks-agentpool-nsg" {
		t.Errorf("the groups are %+v: %v", groups, err)
	}
	routes, err := nics.BeginGetEffectiveRouteTable(t.Context(), "MC_akstest", "aks-nodepool1-0-nic", nil)
	if err != nil {
		t.Fatal(err)
	}
	table, err := routes.PollUntilDone(t.Context(), nil)
	if err != nil || !slices.ContainsFunc(table.Value, func(r *armnetwork.EffectiveRoute) bool {
		return *r.AddressPrefix[0] == "10.13.0.0/16" && *r.NextHopType == armnetwork.RouteNextHopTypeVnetLocal
	}) {
		t.Errorf("the routes are %+v: %v", table, err)
	}
	c.want(http.StatusNotFound, "POST", group+"/networkInterfaces/other/effectiveRouteTable", "")
	c.want(http.StatusMethodNotAllowed, "POST", group+"/networkInterfaces/aks-nodepool1-0-nic/restart", "")
}

// sdk returns a login and options for clients of Azure's SDK.
func (c *client) sdk(t *testing.T) (azcore.TokenCredential, *azurearm.ClientOptions) {
	t.Helper()
	s := httptest.NewTLSServer(c.server)
	t.Cleanup(s.Close)
	options := clientOptions(s)
	return c.login(t, options, token), &azurearm.ClientOptions{ClientOptions: options}
}

// TestThrottled shows that each principal has its buckets of requests, which fill with time.
func TestThrottled(t *testing.T) {
	c := newClient(t)
	limit := arm.Limit{Bucket: 3, PerHour: 240}
	c.server.Settings = func() arm.Settings { return arm.Settings{Reads: limit, Writes: arm.Limit{Bucket: 100, PerHour: 60}} }
	synctest.Test(t, func(t *testing.T) {
		const list = group + "/loadBalancers"
		for left := 2; left >= 0; left-- {
			if h, _ := c.ask(t, 200, "GET", list, ""); h.Get("x-ms-ratelimit-remaining-subscription-reads") != strconv.Itoa(left) {
				t.Errorf("with %d left: %v", left, h)
			}
		}
		time.Sleep(5 * time.Second)
		h, o := c.ask(t, 429, "GET", list, "")
		const want = "Number of 'read' requests for subscription actor 'e7da9914-9b05-4891-893c-546cb7b0422e:00000000-0000-0000-0000-000000000000' " +
			"exceeded. Please try again after '10' seconds after additional tokens are available. Refer to https://aka.ms/arm-throttling for " +
			"additional information."
		if h.Get("Retry-After") != "10" || h.Get("x-ms-ratelimit-remaining-subscription-reads") != "0" || code(o) != "SubscriptionRequestsThrottled" ||
			at(o, "error", "message") != want {
			t.Errorf("headers %v, body %v", h, o)
		}
		if h, _ = c.ask(t, 201, "PUT", group+"/publicIPAddresses/a", publicIP); h.Get("x-ms-ratelimit-remaining-subscription-writes") != "99" {
			t.Errorf("a write: %v", h)
		}
		if h, _ = c.ask(t, 202, "DELETE", group+"/publicIPAddresses/a", ""); h.Get("x-ms-ratelimit-remaining-subscription-deletes") != "" {
			t.Errorf("a deletion, which has no limit: %v", h)
		}
		time.Sleep(10 * time.Second)
		c.ask(t, 200, "GET", list, "")
		c.ask(t, 429, "GET", list, "")
		limit.PerHour = 3600
		c.ask(t, 429, "GET", list, "")
		time.Sleep(time.Second)
		c.ask(t, 200, "GET", list, "")
		limit = arm.Limit{}
		c.ask(t, 200, "GET", list, "")
		c.ask(t, 200, "GET", list, "")
	})
}
