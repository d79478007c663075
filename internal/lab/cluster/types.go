package cluster

import "net/netip"

// The values of apiVersion and kind that Parse accepts.
const (
	APIVersion = "packetwalk.dev/v1alpha1"
	Kind       = "Cluster"
)

// Cluster is one cluster.yaml with its defaults filled in.
type Cluster struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Spec       Spec     `json:"spec"`

	placed Placement // of the running cluster that this is for
}

// Metadata names the cluster.
type Metadata struct {
	// Name is the cluster's name in Azure, as in "az aks create -n": letters, digits, - and _, at most 63. Default aksPacketWalkAzure.
	Name string `json:"name,omitempty"`
}

// Spec is what the cluster is made of.
type Spec struct {
	// KubernetesVersion is the control plane's minor version. Default 1.35.
	KubernetesVersion string       `json:"kubernetesVersion,omitempty"`
	Network           Network      `json:"network,omitzero"`
	ServiceProxy      ServiceProxy `json:"serviceProxy,omitzero"`
	LoadBalancer      LoadBalancer `json:"loadBalancer,omitzero"`
	// NodePools are the pools of virtual machines that run pods. Default: one pool, nodepool1, of one node.
	NodePools   []NodePool  `json:"nodePools,omitzero"`
	VirtualNode VirtualNode `json:"virtualNode,omitzero"`
	// Addons are names as "az aks enable-addons -a" takes them.
	Addons   []string `json:"addons,omitzero"`
	Images   Images   `json:"images,omitzero"`
	Azure    Azure    `json:"azure,omitzero"`
	Internet Internet `json:"internet,omitzero"`
}

// Plugin is a network plugin, as "az aks create --network-plugin" takes it.
type Plugin string

// The network plugins.
const (
	PluginAzure   Plugin = "azure"
	PluginKubenet Plugin = "kubenet"
	// PluginNone: the user brings a CNI plugin, and nodes are not Ready before.
	PluginNone Plugin = "none"
)

// Mode is how Azure CNI joins a pod to its node.
type Mode string

// The modes of Azure CNI: one bridge, azure0, that eth0 is a port of; or a host route to each pod.
const (
	ModeBridge      Mode = "bridge"
	ModeTransparent Mode = "transparent"
)

// Policy is a network policy engine, as "az aks create --network-policy" takes it.
type Policy string

// The network policy engines.
const (
	PolicyNone   Policy = "none"
	PolicyCalico Policy = "calico"
)

// IPMasqAgent is an age of AKS's ip-masq-agent.
type IPMasqAgent string

// The ages of the ip-masq-agent.
const (
	// IPMasqNone: nobody's; the node's own rule, which nothing changes at run time, does the work.
	IPMasqNone IPMasqAgent = "none"
	// IPMasqV1 is kubernetes-sigs/ip-masq-agent with the one ConfigMap azure-ip-masq-agent-config.
	IPMasqV1 IPMasqAgent = "v1"
	// IPMasqV2 is Azure/ip-masq-agent-v2: azure-ip-masq-agent-config-reconciled is AKS's, azure-ip-masq-agent-config the user's.
	IPMasqV2 IPMasqAgent = "v2"
)

// Network is the cluster's network profile.
type Network struct {
	Plugin Plugin `json:"plugin,omitempty"` // default azure
	Mode   Mode   `json:"mode,omitempty"`   // of plugin azure; default bridge, with policy calico transparent
	// Policy is default none. With calico the API serves Calico's IPPools, and they decide whose address destinations see: the pods' range is
	// the first of them.
	Policy Policy `json:"policy,omitempty"`
	// PodCIDR is kubenet's range of pods, of which each node gets a /24 (Node's spec.podCIDR); default 10.244.0.0/16. With plugin none nodes
	// get their parts where it is given. With plugin azure pods get addresses of their node's subnet and this stays empty: see
	// Cluster.PodRange.
	PodCIDR netip.Prefix `json:"podCIDR,omitzero"`
	// Routes, of plugin none, gives the nodes' subnet a route to each node's part of PodCIDR, as kubenet always has.
	Routes bool `json:"routes,omitempty"`
	// ServiceCIDR is the range of ClusterIPs. Default 10.0.0.0/16.
	ServiceCIDR netip.Prefix `json:"serviceCIDR,omitzero"`
	// DNSServiceIP is the ClusterIP of the cluster's DNS. Default: the tenth address of ServiceCIDR.
	DNSServiceIP netip.Addr `json:"dnsServiceIP,omitzero"`
	// IPMasqAgent chooses who gives pods the node's address towards destinations outside NonMasqueradeCIDRs. Default with plugin azure: v2
	// with the current rules, v1 with those of 1.19 and 1.12; none with those of 1.11, and with policy calico where the rules are not 1.12's.
	// Default with kubenet and plugin none: none.
	IPMasqAgent IPMasqAgent `json:"ipMasqAgent,omitempty"`
	// NonMasqueradeCIDRs are the destinations that see a pod's own address; with an ip-masq-agent, what its ConfigMap holds at first. Default:
	// what AKS wrote at the time of the rules, see Spec.defaultNonMasquerade; with policy calico and no ip-masq-agent none, and no rule that
	// looks at them; with plugin none and no agent the same. With kubenet and no agent it is one range, kubelet's --non-masquerade-cidr, by
	// default PodCIDR; 0.0.0.0/0 is every destination.
	NonMasqueradeCIDRs []netip.Prefix `json:"nonMasqueradeCIDRs,omitzero"`
}

// Implementation is a program that makes rules of services.
type Implementation string

// The implementations of the service proxy.
const (
	ProxyPacketwalk Implementation = "packetwalk" // packetwalk-node
	ProxyKubeProxy  Implementation = "kube-proxy" // upstream's, of the control plane's version
	ProxyNone       Implementation = "none"       // nobody, or who the user brings
)

// Backend is what the service proxy writes its rules with.
type Backend string

// The backends.
const (
	BackendIPTables Backend = "iptables"
	BackendNFTables Backend = "nftables"
)

// Rules is the age of the service proxy's rule set.
type Rules string

// The ages: that of the control plane's own kube-proxy, and those of the Kubernetes versions that the articles show.
const (
	RulesCurrent Rules = "current"
	Rules111     Rules = "1.11"
	Rules112     Rules = "1.12"
	Rules119     Rules = "1.19"
)

// ServiceProxy chooses how services become rules. A running cluster takes another implementation and backend.
type ServiceProxy struct {
	Implementation Implementation `json:"implementation,omitempty"` // default packetwalk
	Backend        Backend        `json:"backend,omitempty"`        // default iptables
	Rules          Rules          `json:"rules,omitempty"`          // of packetwalk's; default current
}

// SKU is the load balancer's, as "az aks create --load-balancer-sku" takes it.
type SKU string

// The SKUs of the load balancer.
const (
	SKUBasic    SKU = "basic"
	SKUStandard SKU = "standard"
)

// LoadBalancer is the public load balancer of the cluster.
type LoadBalancer struct {
	SKU SKU `json:"sku,omitempty"` // default basic
	// Frontends are the public addresses that services of type LoadBalancer get, in this order. Default: 203.0.113.10 to 203.0.113.253;
	// Cluster.Frontends gives the list that holds.
	Frontends []netip.Addr `json:"frontends,omitzero"`
	// Outbound is how nodes reach the internet by a Standard load balancer. A Basic one's is not to be set: it uses the services' front ends.
	Outbound Outbound `json:"outbound,omitzero"`
}

// Outbound is the outbound rule that AKS makes on a Standard load balancer, with addresses of its own.
type Outbound struct {
	// ManagedIPs is how many public addresses are for outbound alone ("az aks create --load-balancer-managed-outbound-ip-count"), 1 to 16,
	// used one after the other. Default 1. They are the first ones of Cluster.Frontends.
	ManagedIPs int `json:"managedIPs,omitempty"`
	// Ports is how many source ports each node has towards one destination, over all these addresses (--load-balancer-outbound-ports): a
	// multiple of 8 up to 64000. Default: by the number of nodes, on each address.
	Ports int `json:"ports,omitempty"`
	// IdleTimeoutMinutes is how long a flow may be idle (--load-balancer-idle-timeout), 4 to 120. Default 30. Packets after that are answered
	// with a TCP reset.
	IdleTimeoutMinutes int `json:"idleTimeoutMinutes,omitempty"`
}

// Runtime is what runs a node's pods.
type Runtime string

// The runtimes of nodes.
const (
	// RuntimeLight: a kubelet of packetwalk's own in the lab process.
	RuntimeLight Runtime = "light"
	// RuntimeContainerd: upstream's kubelet and containerd on a machine with a root of its own.
	RuntimeContainerd Runtime = "containerd"
)

// NodePool is a pool of equal nodes.
type NodePool struct {
	Name  string `json:"name"`            // default nodepool1
	Count int    `json:"count,omitempty"` // nodes, 1 to 100; default 1
	// MaxPods is the most pods that a node runs, and with plugin azure the number of addresses that its NIC holds beside its own: 10 to 250,
	// default 30, with plugins kubenet and none 110.
	MaxPods int `json:"maxPods,omitempty"`
	// VNetSubnet is "vnet/subnet" among spec.azure.vnets. Default: the first subnet of the first VNet.
	VNetSubnet string `json:"vnetSubnet,omitempty"`
	VMSize     string `json:"vmSize,omitempty"` // default Standard_B2ms; a label only, no limit of the machine follows from it
	// AvailabilityZones are those that the nodes are in by turns, 1, 2 or 3; default none. Labels only: the names of the nodes stay those of
	// an availability set.
	AvailabilityZones []string `json:"availabilityZones,omitempty"`
	// Runtime is light or containerd; default light.
	Runtime Runtime `json:"runtime,omitempty"`
}

// VirtualNode is the connector to Azure Container Instances: a node without a machine, whose pods become container groups. It needs network
// plugin azure.
type VirtualNode struct {
	Enabled bool `json:"enabled,omitempty"`
	// Subnet is "vnet/subnet" that container groups get addresses of, and nothing else is in. Default when VNets is left out: a subnet of the
	// default VNet, aksVnet/virtual-node-aci, 10.13.100.0/24.
	Subnet string `json:"subnet,omitempty"`
}

// Azure is what lies around the cluster in Azure.
type Azure struct {
	Subscription  string `json:"subscription,omitempty"`  // a UUID; default that of the Part 1 article
	ResourceGroup string `json:"resourceGroup,omitempty"` // default akstest
	Location      string `json:"location,omitempty"`      // default westeurope
	// default aksVnet with subnets aks and vmsubnet, and with a virtual node virtual-node-aci
	VNets []VNet `json:"vnets,omitzero"`
	// RouteTables hold user-defined routes, for the subnets that name them.
	RouteTables []RouteTable `json:"routeTables,omitzero"`
	// NetworkSecurityGroups are for the subnets and VMs that name them. The one of the nodes, Cluster.NodeSecurityGroup, is there without
	// being written here; rules written here under its name are in it beside those that Services get.
	NetworkSecurityGroups []SecurityGroup `json:"networkSecurityGroups,omitzero"`
	// VMs are virtual machines beside the cluster's. Default: testvm in aksVnet/vmsubnet when VNets is left out too, else none.
	VMs []VM `json:"vms,omitzero"`
}

// VNet is a virtual network.
type VNet struct {
	Name            string         `json:"name"`
	AddressPrefixes []netip.Prefix `json:"addressPrefixes,omitzero"`
	Subnets         []Subnet       `json:"subnets,omitzero"`
	// Peerings are the names of the VNets that this side is peered with. As in Azure a peering carries traffic once both sides have it, and
	// only between the two: a VNet that is peered with both of two others does not join them.
	Peerings []string `json:"peerings,omitzero"`
}

// Subnet is a range of a VNet.
type Subnet struct {
	Name       string       `json:"name"`
	Prefix     netip.Prefix `json:"prefix"`
	RouteTable string       `json:"routeTable,omitempty"` // name among spec.azure.routeTables
	// NetworkSecurityGroup is a name among spec.azure.networkSecurityGroups.
	NetworkSecurityGroup string `json:"networkSecurityGroup,omitempty"`
}

// SecurityGroup is a network security group.
type SecurityGroup struct {
	Name  string         `json:"name"`
	Rules []SecurityRule `json:"rules,omitzero"` // without Azure's default rules, which every group has too
}

// SecurityRule says whether flows may begin, as "az network nsg rule create" takes it. The rule with the lowest priority that matches
// decides.
type SecurityRule struct {
	Name      string    `json:"name"`
	Priority  int       `json:"priority"` // 100 to 4096
	Direction Direction `json:"direction"`
	Access    Access    `json:"access"`
	Protocol  Protocol  `json:"protocol,omitempty"` // default *
	// SourceAddressPrefixes and DestinationAddressPrefixes are addresses, prefixes, or one service tag: VirtualNetwork, Internet or
	// AzureLoadBalancer. Default *.
	SourceAddressPrefixes      []string `json:"sourceAddressPrefixes,omitzero"`
	DestinationAddressPrefixes []string `json:"destinationAddressPrefixes,omitzero"`
	// SourcePortRanges and DestinationPortRanges are such as "80" or "8000-8999", of TCP and UDP. Default *.
	SourcePortRanges      []string `json:"sourcePortRanges,omitzero"`
	DestinationPortRanges []string `json:"destinationPortRanges,omitzero"`
}

// Direction is a security rule's, seen from the machine.
type Direction string

// Access is what a security rule does.
type Access string

// Protocol is a security rule's.
type Protocol string

// Values of security rules.
const (
	DirectionInbound  Direction = "Inbound"
	DirectionOutbound Direction = "Outbound"
	AccessAllow       Access    = "Allow"
	AccessDeny        Access    = "Deny"
	ProtocolTCP       Protocol  = "Tcp"
	ProtocolUDP       Protocol  = "Udp"
	ProtocolICMP      Protocol  = "Icmp"
	ProtocolAny       Protocol  = "*"
)

// Words that a security rule's addresses can be besides addresses and prefixes.
const (
	TagVirtualNetwork    = "VirtualNetwork"
	TagInternet          = "Internet"
	TagAzureLoadBalancer = "AzureLoadBalancer"
	AnyAddress           = "*"
)

// RouteTable is a table of user-defined routes.
type RouteTable struct {
	Name   string  `json:"name"`
	Routes []Route `json:"routes,omitzero"`
}

// NextHopType is where a user-defined route leads, as "az network route-table route create --next-hop-type" takes it.
type NextHopType string

// The types of next hops.
const (
	NextHopAppliance NextHopType = "VirtualAppliance" // to the VM that has nextHopAddress, with ipForwarding
	NextHopVNetLocal NextHopType = "VnetLocal"        // within the VNet
	NextHopInternet  NextHopType = "Internet"
	NextHopNone      NextHopType = "None" // dropped
)

// Route is a user-defined route. The longest prefix that holds an address counts, and of two the same the user-defined one.
type Route struct {
	Name           string       `json:"name"`
	Prefix         netip.Prefix `json:"prefix"`
	NextHopType    NextHopType  `json:"nextHopType"`
	NextHopAddress netip.Addr   `json:"nextHopAddress,omitzero"` // of VirtualAppliance only
}

// VM is a virtual machine that is no node.
type VM struct {
	Name string `json:"name"`
	// Subnet is "vnet/subnet" among spec.azure.vnets.
	Subnet string `json:"subnet,omitempty"`
	// Address is its private address. Default: the first of Subnet that neither Azure, nor a node or pod, nor another VM has.
	Address netip.Addr `json:"address,omitzero"`
	// PublicIP gives it a public address of its own, for both directions: see Cluster.VMPublicIP.
	PublicIP bool `json:"publicIP,omitempty"`
	// IPForwarding makes it a virtual appliance: it forwards packets that are not its own, and user-defined routes can lead to it.
	IPForwarding bool `json:"ipForwarding,omitempty"`
	// NetworkSecurityGroup is a name among spec.azure.networkSecurityGroups, for its NIC.
	NetworkSecurityGroup string `json:"networkSecurityGroup,omitempty"`
	// App is the built-in application that it runs; empty for a machine that only answers "packetwalk ssh".
	App string `json:"app,omitempty"`
}

// Internet is the world outside Azure.
type Internet struct {
	// Hosts are machines on the internet. Default: client 198.51.100.10, and ifconfig.co 198.51.100.80 that answers with the caller's address.
	Hosts []InternetHost `json:"hosts,omitzero"`
}

// InternetHost is one machine on the internet.
type InternetHost struct {
	Name    string     `json:"name"`          // a DNS name that the lab resolves
	Address netip.Addr `json:"address"`       // of InternetRange
	App     string     `json:"app,omitempty"` // as VM.App
}
