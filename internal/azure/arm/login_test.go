package arm_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	azurearm "github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/arm"
)

// TestServicePrincipal shows that Azure's SDK logs in as a service principal and creates a security rule, unmodified.
func TestServicePrincipal(t *testing.T) {
	c := newClient(t)
	tls := httptest.NewTLSServer(c.server)
	t.Cleanup(tls.Close)
	options := clientOptions(tls)
	create := func(secret string) error {
		principal := c.login(t, options, secret)
		rules, err := armnetwork.NewSecurityRulesClient(c.network.Subscription, principal, &azurearm.ClientOptions{ClientOptions: options})
		if err != nil {
			t.Fatal(err)
		}
		poller, err := rules.BeginCreateOrUpdate(t.Context(), "MC_akstest", "aks-agentpool-nsg", "deny-web", armnetwork.SecurityRule{
			Properties: &armnetwork.SecurityRulePropertiesFormat{
				Access: new(armnetwork.SecurityRuleAccessDeny), Direction: new(armnetwork.SecurityRuleDirectionInbound), Priority: new(int32(200)),
				Protocol:            new(armnetwork.SecurityRuleProtocolTCP),
				SourceAddressPrefix: new("*"), SourcePortRange: new("*"), DestinationAddressPrefix: new("*"), DestinationPortRange: new("80"),
			}}, nil)
		if err != nil {
			return err
		}
		done, err := poller.PollUntilDone(t.Context(), nil)
		if err == nil && *done.Name != "deny-web" {
			t.Errorf("rule %s", *done.Name)
		}
		return err
	}
	var failed *azidentity.AuthenticationFailedError
	if err := create("wrong"); !errors.As(err, &failed) || !strings.Contains(err.Error(), "AADSTS7000215") {
		t.Errorf("with a wrong secret: %v", err)
	}
	if err := create(token); err != nil {
		t.Fatal(err)
	}
	if g := c.network.SecurityGroups[0]; len(g.Rules) != 1 || g.Rules[0].Name != "deny-web" {
		t.Errorf("rules %v", g.Rules)
	}
}

// clientOptions returns those of Azure's SDK for a server.
func clientOptions(s *httptest.Server) azcore.ClientOptions {
	return azcore.ClientOptions{Transport: s.Client(), Cloud: cloud.Configuration{
		ActiveDirectoryAuthorityHost: s.URL,
		Services:                     map[cloud.ServiceName]cloud.ServiceConfiguration{cloud.ResourceManager: {Endpoint: s.URL, Audience: s.URL}},
	}}
}

// login returns a service principal's login.
func (c *client) login(t *testing.T, options azcore.ClientOptions, secret string) azcore.TokenCredential {
	t.Helper()
	principal, err := azidentity.NewClientSecretCredential(arm.Tenant, "me", secret, &azidentity.ClientSecretCredentialOptions{
		ClientOptions: options, DisableInstanceDiscovery: true})
	if err != nil {
		t.Fatal(err)
	}
	return principal
}

// TestLogin shows the answers to what az and Terraform ask before and after a login.
func TestLogin(t *testing.T) {
	c := newClient(t)
	login := func(form url.Values) (int, map[string]any) {
		r, err := http.PostForm(c.url+"/adfs/oauth2/v2.0/token", form)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, body
	}
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {"me"}, "client_secret": {token}}
	_, granted := login(form)
	access, _ := granted["access_token"].(string)
	if access == "" {
		t.Fatalf("no token: %v", granted)
	}
	form.Set("grant_type", "password")
	if status, refused := login(form); status != http.StatusBadRequest || refused["error"] != "unsupported_grant_type" {
		t.Errorf("grant password: %d %v", status, refused)
	}
	subscription := "/subscriptions/" + c.network.Subscription
	for _, test := range []struct{ path, want string }{
		{"/subscriptions", `"subscriptionId":"` + c.network.Subscription + `"`},
		{subscription, `"tenantId":"` + arm.Tenant + `"`},
		{"/tenants", `"tenantId":"` + arm.Tenant + `"`},
		{subscription + "/resourcegroups", `"name":"MC_akstest"`},
		{subscription + "/locations", `"name":"westeurope"`},
		{subscription + "/providers", `"namespace":"Microsoft.Network"`},
		{"/adfs/.well-known/openid-configuration", `/adfs/oauth2/v2.0/token"`},
		{"/common/discovery/instance", `"tenant_discovery_endpoint"`},
	} {
		_, body := c.do(http.MethodGet, test.path, "", "Authorization", "Bearer "+access)
		if text, _ := json.Marshal(body); !strings.Contains(string(text), test.want) {
			t.Errorf("GET %s: %s", test.path, text)
		}
	}
	// The first two versions of the metadata are az's, the last one is Terraform's.
	for version, want := range map[string]string{"2015-01-01": "{", "2019-05-01": "[", "2022-09-01": "{"} {
		w := httptest.NewRecorder()
		c.server.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metadata/endpoints?api-version="+version, nil))
		if !strings.HasPrefix(w.Body.String(), want) {
			t.Errorf("metadata of version %s: %s", version, w.Body)
		}
	}
	signature := strings.LastIndex(access, ".") + 1
	if status, _ := c.do(http.MethodGet, "/subscriptions", "", "Authorization", "Bearer "+access[:signature]+"AAAA"); status != http.StatusUnauthorized {
		t.Errorf("a token with a false signature: %d", status)
	}
}
