package lab_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/armread"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// bearer is a login with a lab's token.
type bearer string

func (b bearer) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(b), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

// asksAzure asks a running lab's Azure Resource Manager with Azure's SDK, from its VM, and walks by what that says: the destination sees
// the source that the lab's own fabric gives the packet.
func asksAzure(t *testing.T, d lab.Dir, own snapshot.Source) {
	token, err := os.ReadFile(filepath.Join(string(d), "pki", "azure-token"))
	if err != nil {
		t.Fatal(err)
	}
	options := inLab(t, d)
	network, err := lab.Network(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	f, err := armnetwork.NewClientFactory(network.Subscription, bearer(token), options)
	if err != nil {
		t.Fatal(err)
	}
	page, err := f.NewLoadBalancersClient().NewListPager(network.NodeResourceGroup, nil).NextPage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Value) != len(network.LoadBalancers) || *page.Value[0].Name != network.LoadBalancers[0].Name {
		t.Errorf("the SDK got %d load balancers, the lab has %d", len(page.Value), len(network.LoadBalancers))
	}
	if _, err := armnetworkRefused(t, network.Subscription, network.NodeResourceGroup, options); err == nil {
		t.Error("a wrong token lets in")
	}
	r := armview.NewResources()
	node := own.Objects().Nodes[0]
	if err := armread.Read(t.Context(), r, []string{strings.TrimPrefix(node.ProviderID, "azure://")}, bearer(token), options); err != nil {
		t.Fatal(err)
	}
	packets := walk.Request{Host: "node/" + node.Name, Packet: packet.Packet{Tuple: packet.Tuple{
		Protocol: packet.TCP, Source: node.IPs[0], SourcePort: packet.Exactly(40000), Destination: plan.ManagementAddress,
		DestinationPort: packet.Exactly(443)}, TCPFlags: packet.SYN, TTL: 64}}
	extended, err := armview.Extend(withoutAzure{own}, r)
	if err != nil {
		t.Fatal(err)
	}
	want, got := sources(t, own, packets), sources(t, extended, packets)
	if !slices.Equal(want, got) {
		t.Errorf("by the lab %q, by Azure's interface %q", want, got)
	}
}

func armnetworkRefused(t *testing.T, subscription, group string, options *arm.ClientOptions) (any, error) {
	t.Helper()
	f, err := armnetwork.NewClientFactory(subscription, bearer("wrong"), options)
	if err != nil {
		t.Fatal(err)
	}
	return f.NewLoadBalancersClient().NewListPager(group, nil).NextPage(t.Context())
}

// inLab returns the options of a client on the lab's VM.
func inLab(t *testing.T, d lab.Dir) *arm.ClientOptions {
	t.Helper()
	ns, err := netns.Open(d.NetNS("testvm"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	ca, err := os.ReadFile(filepath.Join(string(d), "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return ns.Dial(ctx, network, net.JoinHostPort(plan.ManagementAddress.String(), "443"))
		},
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
	t.Cleanup(transport.CloseIdleConnections)
	o := &arm.ClientOptions{DisableRPRegistration: true}
	at := "https://" + plan.ManagementName
	o.Cloud = cloud.Configuration{ActiveDirectoryAuthorityHost: at, Services: map[cloud.ServiceName]cloud.ServiceConfiguration{
		cloud.ResourceManager: {Endpoint: at, Audience: at},
	}}
	o.Transport = &http.Client{Transport: transport, Timeout: 10 * time.Second}
	return o
}

// withoutAzure is a lab's nodes and VMs alone.
type withoutAzure struct{ snapshot.Source }

func (w withoutAzure) Names() []string {
	return slices.DeleteFunc(w.Source.Names(), func(n string) bool { return !strings.HasPrefix(n, "node/") && !strings.HasPrefix(n, "vm/") })
}

func (w withoutAzure) Host(name string) (*snapshot.Host, error) {
	h, err := w.Source.Host(name)
	if err != nil {
		return nil, err
	}
	alone := *h
	alone.Peers = slices.DeleteFunc(slices.Clone(h.Peers), func(p snapshot.Peer) bool { return p.Host == "fabric" })
	return &alone, nil
}

// sources returns the sources that a packet's destination sees, or why the outcome is undecided.
func sources(t *testing.T, src snapshot.Source, req walk.Request) []string {
	t.Helper()
	result, err := walk.Walk(src, req)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, o := range result.Outcomes {
		if o.End.Kind == walk.Undecided {
			all = append(all, o.End.Why)
			continue
		}
		all = append(all, o.End.Packet.Source.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}
