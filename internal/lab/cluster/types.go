package cluster

import "net/netip"

// The values of apiVersion and kind that Parse accepts.
const (
	APIVersion = "packetwalk.dev/v1alpha1"
	Kind       = "Cluster"
)

// Cluster is one cluster.yaml with its defaults filled in.
type Cluster struct {
	APIVersion string   `json:"apiVersion"` // always packetwalk.dev/v1alpha1
	Kind       string   `json:"kind"`       // always Cluster
	Metadata   Metadata `json:"metadata"`
	Spec       Spec     `json:"spec"`

	placed Placement // of the running cluster that this is for
}

// Metadata names the cluster.
type Metadata struct {
	// Name is the cluster's name in Azure, as in "az aks create -n": letters, digits, "-" and "_", at most 63 characters. Default
	// aksPacketWalkAzure.
	Name string `json:"name,omitempty"`
}

// Spec describes the cluster and the network around it.
type Spec struct {
	// KubernetesVersion is the minor version of the control plane. This version of packetwalk runs 1.35 only.
	KubernetesVersion string       `json:"kubernetesVersion,omitempty"`
	Network           Network      `json:"network,omitzero"`
	ServiceProxy      ServiceProxy `json:"serviceProxy,omitzero"`
	LoadBalancer      LoadBalancer `json:"loadBalancer,omitzero"`
	// OutboundType is how nodes reach the internet ("az aks create --outbound-type"). Default loadBalancer. The others need a Standard load
	// balancer, which is then the default: managedNATGateway, userAssignedNATGateway (the nodes' subnet has natGateway), userDefinedRouting
	// (its route table leads 0.0.0.0/0 to a VM), none, and block (a rule of the nodes' network security group denies it).
	OutboundType OutboundType `json:"outboundType,omitempty"`
	// NATGateway is the NAT gateway that AKS makes with outboundType managedNATGateway.
	NATGateway NATGatewayProfile `json:"natGateway,omitzero"`
	// NodePools are the pools of virtual machines that run pods. Default: one pool, nodepool1, of two nodes; of one node with
	// rules of an older version or mode bridge.
	NodePools   []NodePool  `json:"nodePools,omitzero"`
	VirtualNode VirtualNode `json:"virtualNode,omitzero"`
	NodeOptions NodeOptions `json:"nodeOptions,omitzero"`
	// HostUsers lets pods run as the users of the machine. Default: pods that need none of the node's namespaces, directories and privileges
	// get hostUsers: false, which gives them users of their own.
	HostUsers bool `json:"hostUsers,omitempty"`
	// Addons are AKS addons, by the names that "az aks enable-addons -a" takes: http_application_routing.
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
	// PluginNone leaves the network to a CNI plugin that the user installs. Nodes are not Ready before that.
	PluginNone Plugin = "none"
)

// Mode is how Azure CNI joins a pod to its node.
type Mode string

// The modes of Azure CNI: one bridge, azure0, that eth0 is a port of; or a host route to each pod, whose address is of the node's subnet, or
// with Azure CNI Overlay of a range that no virtual network has.
const (
	ModeBridge      Mode = "bridge"
	ModeTransparent Mode = "transparent"
	ModeOverlay     Mode = "overlay"
)

// Policy is a network policy engine, as "az aks create --network-policy" takes it.
type Policy string

// The network policy engines.
const (
	PolicyNone   Policy = "none"
	PolicyCalico Policy = "calico"
)

// IPMasqAgent is a version of AKS's ip-masq-agent.
type IPMasqAgent string

// The versions of the ip-masq-agent.
const (
	// IPMasqNone has no agent. A rule of the node, which nothing changes at run time, does the work.
	IPMasqNone IPMasqAgent = "none"
	// IPMasqV1 is kubernetes-sigs/ip-masq-agent with the one ConfigMap azure-ip-masq-agent-config.
	IPMasqV1 IPMasqAgent = "v1"
	// IPMasqV2 is Azure/ip-masq-agent-v2: azure-ip-masq-agent-config-reconciled is AKS's, azure-ip-masq-agent-config the user's.
	IPMasqV2 IPMasqAgent = "v2"
)

// Network is the cluster's network profile.
type Network struct {
	// Plugin is the network plugin. Default azure. With none you install a CNI plugin, and nodes are not Ready before.
	Plugin Plugin `json:"plugin,omitempty"`
	// Mode is how Azure CNI connects pods: by the bridge azure0, or transparently by a route to each pod; with overlay also by a route, to
	// addresses of podCIDR. Default overlay, as "az aks create" makes clusters; with policy calico or a virtual node transparent; with rules
	// of an older version, and without calico, bridge. Only with plugin azure.
	Mode Mode `json:"mode,omitempty"`
	// Policy is the network policy engine. Default none, which stores NetworkPolicies and does not enforce them. With calico each node runs
	// Calico's agent felix: 3.31 with rules current, 3.27 with older rules, whose rule texts are those of the articles.
	Policy Policy `json:"policy,omitempty"`
	// PodCIDR is the pods' address range with kubenet and mode overlay, of which each node gets a /24. Default 10.244.0.0/16. With plugin
	// none, nodes get parts of it only if it is set. With other modes of plugin azure it must be empty: pods get addresses of their node's
	// subnet.
	PodCIDR netip.Prefix `json:"podCIDR,omitzero"`
	// Routes gives the nodes' subnet a route to each node's part of podCIDR. Only with plugin none; kubenet always has these routes.
	Routes bool `json:"routes,omitempty"`
	// ServiceCIDR is the range of ClusterIPs. Default 10.0.0.0/16.
	ServiceCIDR netip.Prefix `json:"serviceCIDR,omitzero"`
	// DNSServiceIP is the ClusterIP of the cluster's DNS. Default: the tenth address of serviceCIDR.
	DNSServiceIP netip.Addr `json:"dnsServiceIP,omitzero"`
	// IPMasqAgent is the ip-masq-agent that gives pods the node's address towards destinations outside nonMasqueradeCIDRs: v1 is
	// kubernetes-sigs', v2 Azure's. Default with plugin azure: v2 with rules current, v1 with 1.19 and 1.12, none with 1.11, and
	// none with policy calico and rules 1.19. Default with plugin kubenet: v2 with rules current, else none. Default with plugin none: none.
	IPMasqAgent IPMasqAgent `json:"ipMasqAgent,omitempty"`
	// NonMasqueradeCIDRs are the destinations that see the pod's own address. With an ip-masq-agent they are its ConfigMap's first content.
	// Default: what AKS wrote at the time of serviceProxy.rules, with mode overlay podCIDR; empty with policy calico or plugin none and no
	// agent. With kubenet and no agent it is a single range, by default podCIDR.
	NonMasqueradeCIDRs []netip.Prefix `json:"nonMasqueradeCIDRs,omitzero"`
}

// Implementation is the program that turns Services into rules.
type Implementation string

// The implementations of the service proxy.
const (
	ProxyPacketwalk Implementation = "packetwalk" // packetwalk-node
	ProxyKubeProxy  Implementation = "kube-proxy" // upstream's, of the control plane's version
	ProxyNone       Implementation = "none"       // none, or one that the user installs
)

// Backend is the packet filter that the service proxy writes rules for.
type Backend string

// The backends.
const (
	BackendIPTables Backend = "iptables"
	BackendNFTables Backend = "nftables"
)

// Rules is the version of the service proxy's rule set.
type Rules string

// The versions: that of the control plane's kube-proxy, and those of the Kubernetes versions that the articles show.
const (
	RulesCurrent Rules = "current"
	Rules111     Rules = "1.11"
	Rules112     Rules = "1.12"
	Rules119     Rules = "1.19"
)

// ServiceProxy is the service proxy of every node. Implementation, backend and repair can be changed while the cluster runs.
type ServiceProxy struct {
	// Implementation is packetwalk's own service proxy, upstream's kube-proxy, or none, where you install another. Default packetwalk.
	Implementation Implementation `json:"implementation,omitempty"`
	// Backend is the packet filter that it writes rules for. Default iptables.
	Backend Backend `json:"backend,omitempty"`
	// Rules is the Kubernetes version whose iptables rules packetwalk's own writes, to the letter. The versions other than current also give
	// the nodes what AKS's nodes had at that time. Default current.
	Rules Rules `json:"rules,omitempty"`
	// Repair lets packetwalk's own service proxy put back rules that you delete or change by hand. With false they stay as you left them, so
	// that you can see what breaks, until the Service or its endpoints change. "up -f" with true repairs all. Default true.
	Repair *bool `json:"repair,omitempty"`
}

// Repairs reports whether deleted rules are put back.
func (s ServiceProxy) Repairs() bool { return s.Repair == nil || *s.Repair }

// SKU is the load balancer's, as "az aks create --load-balancer-sku" takes it.
type SKU string

// The SKUs of the load balancer.
const (
	SKUBasic    SKU = "basic"
	SKUStandard SKU = "standard"
)

// LoadBalancer is the public load balancer of the cluster.
type LoadBalancer struct {
	// SKU is the load balancer's SKU. Default standard; basic with rules of an older version or mode bridge, as AKS had then.
	SKU SKU `json:"sku,omitempty"`
	// Frontends are the public addresses that Services of type LoadBalancer get, in this order. Default 203.0.113.10 to 203.0.113.253.
	Frontends []netip.Addr `json:"frontends,omitzero"`
	// Outbound is the outbound rule of a Standard load balancer. A Basic one uses the Services' addresses, and this must be empty.
	Outbound Outbound `json:"outbound,omitzero"`
	// ClusterServiceLoadBalancerHealthProbeMode chooses what a Standard load balancer probes for Services with externalTrafficPolicy
	// Cluster ("az aks create --cluster-service-load-balancer-health-probe-mode"): the node port of each TCP port, or kube-proxy's health
	// on each node by one probe for all these Services. Default servicenodeport.
	ClusterServiceLoadBalancerHealthProbeMode HealthProbeMode `json:"clusterServiceLoadBalancerHealthProbeMode,omitempty"`
}

// HealthProbeMode says which port is probed for Services with externalTrafficPolicy Cluster.
type HealthProbeMode string

// The modes, as cloud-provider-azure's configuration has them.
const (
	ProbeServiceNodePort HealthProbeMode = "servicenodeport"
	ProbeShared          HealthProbeMode = "shared"
)

// Outbound is the outbound rule that AKS makes on a Standard load balancer.
type Outbound struct {
	// ManagedIPs is the number of public addresses for outbound traffic alone ("az aks create --load-balancer-managed-outbound-ip-count"), 1
	// to 16. They are the first of frontends, used one after the other. Default 1.
	ManagedIPs int `json:"managedIPs,omitempty"`
	// Ports is the number of SNAT ports that each node has towards one destination, over all these addresses
	// (--load-balancer-outbound-ports): a multiple of 8, at most 64000. Default: Azure's, by the number of nodes.
	Ports int `json:"ports,omitempty"`
	// IdleTimeoutMinutes is how long a connection may be idle (--load-balancer-idle-timeout), 4 to 120. Later packets are answered with a TCP
	// reset. Default 30.
	IdleTimeoutMinutes int `json:"idleTimeoutMinutes,omitempty"`
}

// Runtime is what runs a node's pods.
type Runtime string

// The runtimes of nodes.
const (
	// RuntimeContainerd: upstream's kubelet and containerd on a machine with a root of its own.
	RuntimeContainerd Runtime = "containerd"
	// RuntimeSimulated: no containers; a pod is a network namespace with a listener on each of its ports.
	RuntimeSimulated Runtime = "simulated"
)

// PoolMode is what a node pool is for, as "az aks nodepool add --mode" takes it.
type PoolMode string

// The modes of node pools.
const (
	ModeSystem PoolMode = "System"
	ModeUser   PoolMode = "User"
)

// NodePool is a pool of equal nodes.
type NodePool struct {
	Name  string `json:"name"`            // required with several pools; default nodepool1
	Count int    `json:"count,omitempty"` // number of nodes, 1 to 100; default 1
	// MaxPods is the most pods that a node runs, 10 to 250. With plugin azure, but for mode overlay, a node's NIC holds as many addresses
	// besides its own. Default 30; with mode overlay 250, with plugins kubenet and none 110.
	MaxPods int `json:"maxPods,omitempty"`
	// VNetSubnet is "vnet/subnet" among spec.azure.vnets. Default: the first subnet of the first VNet. All pools are in one VNet, and in one
	// subnet with plugin kubenet and with spec.network.routes. The service proxy takes the first pool's subnet for the range of pods.
	VNetSubnet string `json:"vnetSubnet,omitempty"`
	// EnableNodePublicIP gives each node a public address ("az aks create --enable-node-public-ip"), for both directions. Default false.
	EnableNodePublicIP bool `json:"enableNodePublicIP,omitempty"`
	// VMSize is a label only: it sets no limits. Default Standard_B2ms.
	VMSize string `json:"vmSize,omitempty"`
	// AvailabilityZones are "1", "2" or "3"; the nodes are in them by turns. They are labels only. Default none.
	AvailabilityZones []string `json:"availabilityZones,omitempty"`
	// Mode is what the pool is for. AKS's own pods prefer System pools, and a cluster needs one. Default System.
	Mode PoolMode `json:"mode,omitempty"`
	// NodeLabels are labels of the pool's nodes, beside those that AKS gives them.
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// NodeTaints are taints of the pool's nodes, such as "sku=gpu:NoSchedule".
	NodeTaints []string `json:"nodeTaints,omitempty"`
	// Runtime is what runs the pods: containerd with upstream's kubelet, or simulated, for scale: no containers, but a network for each pod
	// and a listener on each of its ports, in pools of mode User. Default containerd.
	Runtime Runtime `json:"runtime,omitempty"`
}

// VirtualNode is the connector to Azure Container Instances: a node without a machine, whose pods become container groups. It needs plugin
// azure in another mode than overlay.
type VirtualNode struct {
	Enabled bool `json:"enabled,omitempty"` // default false
	// Subnet is the subnet of the container groups, as "vnet/subnet"; nothing else may be in it. Default when azure.vnets is empty: a subnet
	// of the default VNet, virtual-node-aci.
	Subnet string `json:"subnet,omitempty"`
}

// Azure describes the network around the cluster.
type Azure struct {
	Subscription  string `json:"subscription,omitempty"`  // a UUID; default that of the Part 1 article
	ResourceGroup string `json:"resourceGroup,omitempty"` // default akstest
	Location      string `json:"location,omitempty"`      // default westeurope
	// VNets are the virtual networks. Default: aks-vnet with the subnets aks-subnet and vms, and peered with it hub with the subnet servers.
	// With rules of an older version or mode bridge: aksVnet with the subnets aks and vmsubnet, as in the Part 1 article.
	VNets []VNet `json:"vnets,omitzero"`
	// RouteTables hold user-defined routes. A subnet refers to a table by its name.
	RouteTables []RouteTable `json:"routeTables,omitzero"`
	// NATGateways translate what leaves for the internet. A subnet refers to a gateway by its name.
	NATGateways []NATGateway `json:"natGateways,omitzero"`
	// NetworkSecurityGroups are referred to by subnets and VMs. The nodes' group always exists. Rules under its name
	// (aks-agentpool-DIGITS-nsg, see "packetwalk az network nsg list") are added to those that Services get.
	NetworkSecurityGroups []SecurityGroup `json:"networkSecurityGroups,omitzero"`
	// VMs are virtual machines that are not nodes. Default when vnets is empty too: vm in aks-vnet/vms and server in hub/servers, or with
	// aksVnet testvm in aksVnet/vmsubnet. Else none.
	VMs []VM `json:"vms,omitzero"`
	// ResourceManager is how Azure Resource Manager answers: for watching how its clients wait and back off.
	ResourceManager ResourceManager `json:"resourceManager,omitzero"`
}

// VNet is a virtual network.
type VNet struct {
	Name            string         `json:"name"`                     // required
	AddressPrefixes []netip.Prefix `json:"addressPrefixes,omitzero"` // the ranges that the subnets are in
	Subnets         []Subnet       `json:"subnets,omitzero"`
	// Peerings are the names of the VNets that this one is peered with. A peering carries traffic when both sides have it. It is not
	// transitive.
	Peerings []string `json:"peerings,omitzero"`
}

// Subnet is a range of a VNet.
type Subnet struct {
	Name       string       `json:"name"`                 // required
	Prefix     netip.Prefix `json:"prefix"`               // required
	RouteTable string       `json:"routeTable,omitempty"` // a name in spec.azure.routeTables
	// NetworkSecurityGroup is a name in spec.azure.networkSecurityGroups.
	NetworkSecurityGroup string `json:"networkSecurityGroup,omitempty"`
	NATGateway           string `json:"natGateway,omitempty"` // a name in spec.azure.natGateways
	// DefaultOutboundAccess lets machines without any other way to the internet leave by an address of Azure's. Default true with
	// outboundType loadBalancer, else false, as in Azure's new VNets.
	DefaultOutboundAccess *bool `json:"defaultOutboundAccess,omitempty"`
}

// SecurityGroup is a network security group.
type SecurityGroup struct {
	Name  string         `json:"name"`           // required
	Rules []SecurityRule `json:"rules,omitzero"` // in addition to Azure's default rules, which every group has
}

// SecurityRule allows or denies new flows, as "az network nsg rule create" takes it. The matching rule with the lowest priority decides.
type SecurityRule struct {
	Name      string    `json:"name"`               // required
	Priority  int       `json:"priority"`           // 100 to 4096, required
	Direction Direction `json:"direction"`          // required
	Access    Access    `json:"access"`             // required
	Protocol  Protocol  `json:"protocol,omitempty"` // default *
	// SourceAddressPrefixes are addresses, CIDRs, or one service tag: VirtualNetwork, Internet or AzureLoadBalancer. Default *.
	SourceAddressPrefixes []string `json:"sourceAddressPrefixes,omitzero"`
	// DestinationAddressPrefixes are written as sourceAddressPrefixes. Default *.
	DestinationAddressPrefixes []string `json:"destinationAddressPrefixes,omitzero"`
	// SourcePortRanges are TCP and UDP ports, such as "80" or "8000-8999". Default *.
	SourcePortRanges []string `json:"sourcePortRanges,omitzero"`
	// DestinationPortRanges are written as sourcePortRanges. Default *.
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
	Name   string  `json:"name"` // required
	Routes []Route `json:"routes,omitzero"`
}

// NextHopType is the type of a user-defined route's next hop, as "az network route-table route create --next-hop-type" takes it.
type NextHopType string

// The types of next hops.
const (
	NextHopAppliance NextHopType = "VirtualAppliance" // to the VM that has nextHopAddress, with ipForwarding
	NextHopVNetLocal NextHopType = "VnetLocal"        // within the VNet
	NextHopInternet  NextHopType = "Internet"
	NextHopNone      NextHopType = "None" // dropped
)

// Route is a user-defined route. The longest matching prefix decides; of two equal ones the user-defined route wins over Azure's.
type Route struct {
	Name           string       `json:"name"`                    // required
	Prefix         netip.Prefix `json:"prefix"`                  // required
	NextHopType    NextHopType  `json:"nextHopType"`             // required
	NextHopAddress netip.Addr   `json:"nextHopAddress,omitzero"` // only with VirtualAppliance: the address of a VM with ipForwarding
}

// VM is a virtual machine that is not a node.
type VM struct {
	Name string `json:"name"` // required
	// Subnet is a subnet of spec.azure.vnets, as "vnet/subnet".
	Subnet string `json:"subnet,omitempty"`
	// Address is the private address. Default: the first free one of subnet.
	Address netip.Addr `json:"address,omitzero"`
	// PublicIP gives the VM a public address, for both directions. Default false.
	PublicIP bool `json:"publicIP,omitempty"`
	// IPForwarding makes the VM a virtual appliance: it forwards packets, and user-defined routes can lead to it. Default false.
	IPForwarding bool `json:"ipForwarding,omitempty"`
	// NetworkSecurityGroup is a name in spec.azure.networkSecurityGroups, for the VM's NIC.
	NetworkSecurityGroup string `json:"networkSecurityGroup,omitempty"`
	// Firewall makes the VM a firewall with connection tracking, which logs what it forwards and drops. Write {} for one without rules. It
	// needs ipForwarding.
	Firewall *Firewall `json:"firewall,omitempty"`
	// App is the built-in application that the VM runs, such as nginx. Default none.
	App string `json:"app,omitempty"`
}

// Internet is the network outside Azure.
type Internet struct {
	// Hosts are hosts on the internet. Default: client 198.51.100.10, and ifconfig.co 198.51.100.80, which answers with the caller's address.
	Hosts []InternetHost `json:"hosts,omitzero"`
}

// InternetHost is a host on the internet.
type InternetHost struct {
	Name    string     `json:"name"`          // the host's DNS name, required
	Address netip.Addr `json:"address"`       // in 198.51.100.10-198.51.100.254, required
	App     string     `json:"app,omitempty"` // the built-in application that the host runs, such as ifconfig.co
}
