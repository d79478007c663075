package claims

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"
)

// sdk shows that a security rule which Azure's own SDK creates, logged in as a service principal by what status prints, holds in the lab
// until the SDK deletes it.
func (s *security) sdk(t *testing.T) {
	var status struct {
		Azure struct{ Endpoint, Tenant, Subscription, Token, CA string }
	}
	if err := json.Unmarshal([]byte(s.Run(t, "status", "--name", s.Name, "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	azure := status.Azure
	certificate, err := os.ReadFile(azure.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	options := azcore.ClientOptions{
		Transport: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}},
		Cloud: cloud.Configuration{ActiveDirectoryAuthorityHost: azure.Endpoint, Services: map[cloud.ServiceName]cloud.ServiceConfiguration{
			cloud.ResourceManager: {Endpoint: azure.Endpoint, Audience: azure.Endpoint}}},
	}
	principal, err := azidentity.NewClientSecretCredential(azure.Tenant, "me", azure.Token,
		&azidentity.ClientSecretCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := armnetwork.NewSecurityRulesClient(azure.Subscription, principal, &arm.ClientOptions{ClientOptions: options})
	if err != nil {
		t.Fatal(err)
	}
	const name = "from-sdk"
	created, err := rules.BeginCreateOrUpdate(t.Context(), "akstest", "vms", name, armnetwork.SecurityRule{
		Properties: &armnetwork.SecurityRulePropertiesFormat{
			Access: new(armnetwork.SecurityRuleAccessDeny), Direction: new(armnetwork.SecurityRuleDirectionInbound), Priority: new(int32(160)),
			Protocol:            new(armnetwork.SecurityRuleProtocolTCP),
			SourceAddressPrefix: new("*"), SourcePortRange: new("*"), DestinationAddressPrefix: new("*"), DestinationPortRange: new("80"),
		}}, nil)
	if err == nil {
		_, err = created.PollUntilDone(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.walk(t, "internet/client", vmPublic+":80", "NSG vms rule "+name+" (160) denies")
	if err := s.curl("client", vmPublic); err == nil {
		t.Error("the rule is not in force")
	}
	deleted, err := rules.BeginDelete(t.Context(), "akstest", "vms", name, nil)
	if err == nil {
		_, err = deleted.PollUntilDone(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.curl("client", vmPublic); err != nil {
		t.Error(err)
	}
}
