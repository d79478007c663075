package controlplane

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
)

// CloudControllerManager is Kubernetes' own cloud controllers with Azure's provider.
const CloudControllerManager = "cloud-controller-manager"

// CloudControllerUser is their identity in the API.
var CloudControllerUser = User{Name: CloudControllerManager, Common: "cloud-controller-manager"}

// Cloud holds the settings of Azure's provider.
type Cloud struct {
	Manager       netip.Addr // where Azure Resource Manager answers, TCP port 443
	Token         string     // the lab's own, for the managed identity
	Subscription  string
	ResourceGroup string // of the nodes and the load balancer
	NetworkGroup  string // of the virtual network
	Location      string
	VNet, Subnet  string // of the nodes
	SecurityGroup string // of the nodes' NICs
	ProbeMode     string // for Services with externalTrafficPolicy Cluster: servicenodeport or shared
}

// CloudController returns the process of the cloud controllers. Of these it runs the service controller alone: kubelets know their own
// addresses.
func (c Config) CloudController(cloud Cloud) (Component, error) {
	text, err := cloud.configuration()
	if err == nil {
		err = writeFiles([]file{{c.pki("azure.json"), text}})
	}
	if err != nil {
		return Component{}, err
	}
	p := c.process(CloudControllerManager, []string{
		"--cloud-provider=azure",
		"--cloud-config=" + c.pki("azure.json"),
		"--kubeconfig=" + c.KubeconfigPath(CloudControllerUser),
		"--controllers=service-lb-controller",
		"--configure-cloud-routes=false",
		"--cluster-name=" + cloudClusterName,
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000", // as the controller manager's
		"--profiling=false",
	})
	manager := "https://" + cloud.Manager.String()
	p.Env = append(withoutProxies(os.Environ()),
		"SSL_CERT_FILE="+c.pki("ca.crt"),
		// azidentity takes managed identities from this endpoint of App Service's where the environment names it.
		"IDENTITY_ENDPOINT="+manager+"/msi/token", "IDENTITY_HEADER="+cloud.Token,
	)
	return Component{Process: p, After: APIServer}, nil
}

// cloudClusterName is AKS's own name for each cluster: the load balancer and its back-end pool are called this.
const cloudClusterName = "kubernetes"

// withoutProxies returns an environment without the machine's HTTP proxies. The control plane's namespace has no way to them.
func withoutProxies(env []string) (all []string) {
	for _, e := range env {
		if name, _, _ := strings.Cut(strings.ToLower(e), "="); !strings.HasSuffix(name, "_proxy") {
			all = append(all, e)
		}
	}
	return all
}

// configuration returns the provider's file as AKS has it (cloud-provider-azure, pkg/provider/config), but for the caches: the provider
// asks anew each time, so that it sees at once what else changes the network.
func (c Cloud) configuration() ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"cloud": "AzurePublicCloud", "resourceManagerEndpoint": "https://" + c.Manager.String(),
		"tenantId": "00000000-0000-0000-0000-000000000000", "subscriptionId": c.Subscription,
		"useManagedIdentityExtension": true, "useInstanceMetadata": false,
		"resourceGroup": c.ResourceGroup, "location": c.Location,
		"vnetName": c.VNet, "vnetResourceGroup": c.NetworkGroup, "subnetName": c.Subnet,
		"securityGroupName": c.SecurityGroup,
		"vmType":            "standard", "loadBalancerSku": "standard", "disableOutboundSNAT": true,
		"clusterServiceLoadBalancerHealthProbeMode": c.ProbeMode,
		"cloudProviderBackoff":                      false, "cloudProviderRateLimit": false, "disableAPICallCache": true,
	}, "", "  ")
}
