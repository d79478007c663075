package armread_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	azcloud "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	manage "packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/armread"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/az"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/plan"
)

const token = "the-token-of-the-lab"

// static is a login with a token, or none.
type static struct{ err error }

func (s static) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: token, ExpiresOn: time.Now().Add(time.Hour)}, s.err
}

// labOf returns the lab of an example.
func labOf(t testing.TB, example string) az.Lab {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../examples", example, "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c, errs := cluster.Parse(nil, text)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	n, err := plan.Network(c)
	if err != nil {
		t.Fatal(err)
	}
	return az.Lab{Network: n, Cluster: c, KubernetesVersion: "1.35.8"}
}

func serve(t testing.TB, h http.Handler) *arm.ClientOptions {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	o := &arm.ClientOptions{}
	o.Cloud = azcloud.Configuration{ActiveDirectoryAuthorityHost: s.URL, Services: map[azcloud.ServiceName]azcloud.ServiceConfiguration{
		azcloud.ResourceManager: {Endpoint: s.URL, Audience: s.URL},
	}}
	o.Transport, o.DisableRPRegistration = s.Client(), true
	return o
}

// manager answers for a lab, which never changes.
func manager(l az.Lab) *manage.Server {
	return &manage.Server{Token: token, Network: func() vnet.Network { return l.Network },
		Other: func(kind string) ([]any, bool, error) { return az.Other(l, kind) }}
}

// shown returns the output of packetwalk az.
func shown(t *testing.T, l az.Lab, words string) any {
	t.Helper()
	var out, errs strings.Builder
	if code := az.Run(strings.Fields(words), l, &out, &errs); code != 0 {
		t.Fatal(words, errs.String())
	}
	var v any
	if err := json.Unmarshal([]byte(out.String()), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// names are the ids of what the SDK gave, or az showed.
func ids[T any](t *testing.T, v T) []string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var list []struct{ ID string }
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, x := range list {
		all = append(all, x.ID)
	}
	return all
}

func pages[T any](t *testing.T, p *runtime.Pager[T], take func(T) []string) []string {
	t.Helper()
	var all []string
	for p.More() {
		page, err := p.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, take(page)...)
	}
	return all
}

// TestSDK: Azure's SDK for Go, asking a lab, gets what packetwalk az shows.
func TestSDK(t *testing.T) {
	for _, example := range []string{"azure-cni", "outbound", "shop", "iptables"} {
		t.Run(example, func(t *testing.T) {
			l := labOf(t, example)
			o := serve(t, manager(l))
			sub, group := l.Network.Subscription, l.Network.NodeResourceGroup
			f, err := armnetwork.NewClientFactory(sub, static{}, o)
			if err != nil {
				t.Fatal(err)
			}
			for words, got := range map[string][]string{
				"network lb list": pages(t, f.NewLoadBalancersClient().NewListPager(group, nil),
					func(p armnetwork.LoadBalancersClientListResponse) []string { return ids(t, p.Value) }),
				"network nic list": pages(t, f.NewInterfacesClient().NewListPager(group, nil),
					func(p armnetwork.InterfacesClientListResponse) []string { return ids(t, p.Value) }),
				"network public-ip list": pages(t, f.NewPublicIPAddressesClient().NewListPager(group, nil),
					func(p armnetwork.PublicIPAddressesClientListResponse) []string { return ids(t, p.Value) }),
				"network nsg list": pages(t, f.NewSecurityGroupsClient().NewListPager(group, nil),
					func(p armnetwork.SecurityGroupsClientListResponse) []string { return ids(t, p.Value) }),
				"network route-table list": pages(t, f.NewRouteTablesClient().NewListPager(group, nil),
					func(p armnetwork.RouteTablesClientListResponse) []string { return ids(t, p.Value) }),
			} {
				if want := ids(t, shown(t, l, words+" -g "+group)); !slices.Equal(got, want) {
					t.Errorf("%s: the SDK got %q, az shows %q", words, got, want)
				}
			}
			one(t, l, f)
			managedCluster(t, l, o)
		})
	}
}

// one compares all of one resource.
func one(t *testing.T, l az.Lab, f *armnetwork.ClientFactory) {
	t.Helper()
	nic := l.Network.NICs[0]
	got, err := f.NewInterfacesClient().Get(t.Context(), l.Network.NodeResourceGroup, nic.Name, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := shown(t, l, "network nic show -g "+l.Network.NodeResourceGroup+" -n "+nic.Name).(map[string]any)
	if got, want := *got.Properties.IPConfigurations[0].Properties.PrivateIPAddress, nic.Primary().Address.String(); got != want {
		t.Errorf("address %s, want %s", got, want)
	}
	if *got.ID != want["id"] || *got.Properties.MacAddress != want["macAddress"] ||
		*got.Properties.EnableIPForwarding != want["enableIpForwarding"] {
		t.Errorf("the SDK got %s, az shows %v", *got.ID, want["id"])
	}
	_, err = f.NewInterfacesClient().Get(t.Context(), l.Network.NodeResourceGroup, "none", nil)
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) || answer.StatusCode != http.StatusNotFound || answer.ErrorCode != "ResourceNotFound" {
		t.Errorf("an interface that is not there: %v", err)
	}
}

func managedCluster(t *testing.T, l az.Lab, o *arm.ClientOptions) {
	t.Helper()
	c, err := armcontainerservice.NewManagedClustersClient(l.Network.Subscription, static{}, o)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Get(t.Context(), l.Cluster.Spec.Azure.ResourceGroup, l.Cluster.Metadata.Name, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := got.Properties
	if *p.NodeResourceGroup != l.Network.NodeResourceGroup || *p.NetworkProfile.DNSServiceIP != l.Cluster.Spec.Network.DNSServiceIP.String() ||
		len(p.AgentPoolProfiles) != len(l.Cluster.Spec.NodePools) {
		t.Errorf("the SDK got %+v", p)
	}
}

// TestRead: what is read is all that a walk needs, by the ids of the nodes.
func TestRead(t *testing.T) {
	l := labOf(t, "outbound")
	r := armview.NewResources()
	scope := fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/virtualMachines/%s", l.Network.Subscription,
		l.Network.NodeResourceGroup, l.Network.NICs[0].Machine)
	if err := armread.Read(t.Context(), r, []string{scope}, static{}, serve(t, manager(l))); err != nil {
		t.Fatal(err)
	}
	if len(r.Unread) > 0 || len(r.References()) > 0 {
		t.Errorf("not read: %q, %q", r.Unread, r.References())
	}
	if len(r.Clusters) != 1 || len(r.VNets) == 0 || len(r.LoadBalancers) != len(l.Network.LoadBalancers) {
		t.Errorf("read %d clusters, %d virtual networks, %d load balancers", len(r.Clusters), len(r.VNets), len(r.LoadBalancers))
	}
	again := armview.NewResources()
	err := armread.Read(t.Context(), again, []string{scope, scope}, static{}, serve(t, manager(l)))
	if err != nil || !reflect.DeepEqual(r.LoadBalancers, again.LoadBalancers) {
		t.Errorf("the same scope twice gives something else, or %v", err)
	}
}

// loginError is how azidentity reports a missing login.
type loginError struct{ error }

func (loginError) NonRetriable() {}

// TestRefused: without a login there is one line with the remedy; what may not be read is told, and the rest is read; a list does not
// lead to another host.
func TestRefused(t *testing.T) {
	l := labOf(t, "outbound")
	scope := []string{"/subscriptions/" + l.Network.Subscription + "/resourceGroups/" + l.Network.NodeResourceGroup}
	long := "DefaultAzureCredential: failed\n\tAzureCLICredential: not logged in\n" + strings.Repeat("x", 2000)
	nobody := static{loginError{errors.New(long)}}
	err := armread.Read(t.Context(), armview.NewResources(), scope, nobody, serve(t, manager(l)))
	if err == nil || !strings.Contains(err.Error(), "run 'az login'") || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "failed; AzureCLICredential: not logged in; x") || len(err.Error()) > 1200 {
		t.Errorf("no login: %v", err)
	}
	r := armview.NewResources()
	inner := manager(l)
	err = armread.Read(t.Context(), r, scope, static{}, serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch {
		case strings.HasSuffix(q.URL.Path, "/loadBalancers"):
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"error":{"code":"AuthorizationFailed","message":"…"}}`)
		case strings.HasSuffix(q.URL.Path, "/natGateways"):
			fmt.Fprint(w, `{"value":[],"nextLink":"https://elsewhere.example/steal"}`)
		default:
			inner.ServeHTTP(w, q)
		}
	})))
	if err != nil || len(r.Interfaces) == 0 {
		t.Fatal(err)
	}
	all := strings.Join(r.Unread, "\n")
	for _, want := range []string{"loadBalancers: HTTP 403 AuthorizationFailed", "natGateways: the list's next page is at another host"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in %s", want, all)
		}
	}
	if err := armread.Read(t.Context(), armview.NewResources(), []string{"x"}, static{}, nil); err == nil {
		t.Error("no id of Azure is taken for one")
	}
}
