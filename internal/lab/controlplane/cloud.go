package controlplane

import (
	"encoding/json"
	"net/netip"
	"strings"
)

// CloudControllerManager is Kubernetes' own cloud controllers with Azure's provider.
const CloudControllerManager = "cloud-controller-manager"

// CloudControllerUser is their identity in the API.
var CloudControllerUser = User{Name: CloudControllerManager, Common: "cloud-controller-manager"}

// Cloud holds the settings of Azure's provider.
type Cloud struct {
	Manager         netip.Addr // where Azure Resource Manager answers, TCP port 443
	Token           string     // the lab's own, for the managed identity
	Tenant          string
	Subscription    string
	ResourceGroup   string // of the nodes and the load balancer
	NetworkGroup    string // of the virtual network
	Location        string
	VNet, Subnet    string // of the nodes
	SecurityGroup   string // of the nodes' NICs
	LoadBalancerSKU string // basic or standard
	ProbeMode       string // for Services with externalTrafficPolicy Cluster: servicenodeport or shared
	AvailabilitySet string // of the nodes
	// RouteTable gets a route to the pods of each node, PodCIDR; "" for none. RouteTableGroup is its resource group.
	RouteTable, RouteTableGroup string
	PodCIDR                     netip.Prefix
}

// CloudController returns the process of the cloud controllers. Of these it runs those of services and routes: kubelets know their own
// addresses.
func (c Config) CloudController(cloud Cloud) (Component, error) {
	text, err := cloud.configuration()
	if err == nil {
		err = writeFiles([]file{{c.pki("azure.json"), text}})
	}
	if err != nil {
		return Component{}, err
	}
	p := c.process(CloudControllerManager, append(cloud.controllers(),
		"--cloud-provider=azure",
		"--cloud-config="+c.pki("azure.json"),
		"--kubeconfig="+c.KubeconfigPath(CloudControllerUser),
		"--cluster-name="+cloudClusterName,
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000", // as the controller manager's
		"--profiling=false",
	))
	manager := "https://" + cloud.Manager.String()
	p.Env = append(withoutProxies(p.Env),
		"SSL_CERT_FILE="+c.pki("ca.crt"),
		// azidentity takes managed identities from this endpoint of App Service's where the environment names it.
		"IDENTITY_ENDPOINT="+manager+"/msi/token", "IDENTITY_HEADER="+cloud.Token,
	)
	return Component{Process: p, After: APIServer}, nil
}

// controllers returns the flags that choose the controllers. The route controller looks at the nodes every second, which is how long a new
// node waits for its route: upstream's 10 s would delay the lab's start.
func (c Cloud) controllers() []string {
	if c.RouteTable == "" {
		return []string{"--controllers=service-lb-controller", "--configure-cloud-routes=false"}
	}
	return []string{"--controllers=service-lb-controller,node-route-controller", "--configure-cloud-routes=true",
		"--cluster-cidr=" + c.PodCIDR.String(), "--route-reconciliation-period=1s"}
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

// configuration returns the provider's file as AKS has it (cloud-provider-azure, pkg/provider/config), but for the caches and waits: the
// provider asks anew each time, so that it sees at once what else changes the network, and a route has its effect at once.
func (c Cloud) configuration() ([]byte, error) {
	settings := map[string]any{
		"cloud": "AzurePublicCloud", "resourceManagerEndpoint": "https://" + c.Manager.String(),
		"tenantId": c.Tenant, "subscriptionId": c.Subscription,
		"useManagedIdentityExtension": true, "useInstanceMetadata": false,
		"resourceGroup": c.ResourceGroup, "location": c.Location,
		"vnetName": c.VNet, "vnetResourceGroup": c.NetworkGroup, "subnetName": c.Subnet,
		"securityGroupName": c.SecurityGroup,
		"routeTableName":    c.RouteTable, "routeTableResourceGroup": c.RouteTableGroup,
		"routeUpdateIntervalInSeconds": 1, "routeUpdateWaitingInSeconds": 1,
		"vmType": "standard", "primaryAvailabilitySetName": c.AvailabilitySet, "loadBalancerSku": c.LoadBalancerSKU,
		"clusterServiceLoadBalancerHealthProbeMode": c.ProbeMode,
		"cloudProviderBackoff":                      false, "cloudProviderRateLimit": false, "disableAPICallCache": true,
	}
	if c.LoadBalancerSKU == "standard" { // the provider refuses it for a Basic one
		settings["disableOutboundSNAT"] = true
	}
	return json.MarshalIndent(settings, "", "  ")
}
