// Package proxyconfig is kube-proxy's configuration file, KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1: its fields, reading
// it as leniently as kube-proxy does, and what of a file has no effect on packetwalk-node. Upstream's own types (k8s.io/kube-proxy) link
// Prometheus's library, OpenTelemetry and cobra, which would be a fifth of the program; the oracle's tests hold these to them.
//
// The package is pure and must not import anything of ours.
package proxyconfig

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The API version and kind of a file.
const (
	Group      = "kubeproxy.config.k8s.io"
	APIVersion = Group + "/v1alpha1"
	Kind       = "KubeProxyConfiguration"
)

// Modes of the proxy on Linux; the empty one is ModeIPTables.
const (
	ModeIPTables = "iptables"
	ModeNFTables = "nftables"
	ModeIPVS     = "ipvs" // that packetwalk-node does not have
)

// How traffic of local pods is recognised; the empty one is LocalClusterCIDR.
const (
	LocalClusterCIDR         = "ClusterCIDR"
	LocalNodeCIDR            = "NodeCIDR"
	LocalBridgeInterface     = "BridgeInterface"
	LocalInterfaceNamePrefix = "InterfaceNamePrefix"
)

// Primary is the only entry of nodePortAddresses when node ports answer on the node's own address.
const Primary = "primary"

// Configuration has the fields of k8s.io/kube-proxy/config/v1alpha1, with upstream's meaning; docs of each are there. A zero value is
// kube-proxy's default. The tag effect:"none" is on what packetwalk-node takes and does nothing with, and unless on the value that it has
// anyway.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`

	FeatureGates                map[string]bool  `json:"featureGates,omitempty" effect:"none"`
	ClientConnection            ClientConnection `json:"clientConnection"`
	Logging                     Logging          `json:"logging" effect:"none"`
	HostnameOverride            string           `json:"hostnameOverride"`
	BindAddress                 string           `json:"bindAddress"`
	HealthzBindAddress          string           `json:"healthzBindAddress"`
	MetricsBindAddress          string           `json:"metricsBindAddress"`
	BindAddressHardFail         bool             `json:"bindAddressHardFail"`
	EnableProfiling             bool             `json:"enableProfiling" effect:"none"`
	ShowHiddenMetricsForVersion string           `json:"showHiddenMetricsForVersion" effect:"none"`
	Mode                        string           `json:"mode"`
	IPTables                    IPTables         `json:"iptables"`
	IPVS                        IPVS             `json:"ipvs" effect:"none"`
	NFTables                    NFTables         `json:"nftables"`
	Winkernel                   Winkernel        `json:"winkernel" effect:"none"`
	DetectLocalMode             string           `json:"detectLocalMode"`
	DetectLocal                 DetectLocal      `json:"detectLocal"`
	ClusterCIDR                 string           `json:"clusterCIDR"`
	NodePortAddresses           []string         `json:"nodePortAddresses"`
	OOMScoreAdj                 *int32           `json:"oomScoreAdj"`
	Conntrack                   Conntrack        `json:"conntrack"`
	ConfigSyncPeriod            metav1.Duration  `json:"configSyncPeriod" effect:"none" unless:"15m0s"`
	PortRange                   string           `json:"portRange" effect:"none"`
	WindowsRunAsService         bool             `json:"windowsRunAsService,omitempty" effect:"none"`
}

// ClientConnection is how the API server is asked.
type ClientConnection struct {
	Kubeconfig         string  `json:"kubeconfig"`
	AcceptContentTypes string  `json:"acceptContentTypes" effect:"none"`
	ContentType        string  `json:"contentType" effect:"none" unless:"application/vnd.kubernetes.protobuf"`
	QPS                float32 `json:"qps"`
	Burst              int32   `json:"burst"`
}

// Logging is that of all of Kubernetes' components (k8s.io/component-base/logs/api/v1).
type Logging struct {
	Format         string         `json:"format,omitempty" unless:"text"`
	FlushFrequency any            `json:"flushFrequency" unless:"5s"` // a duration, or nanoseconds
	Verbosity      uint32         `json:"verbosity"`
	VModule        []any          `json:"vmodule,omitempty"`
	Options        map[string]any `json:"options,omitempty"`
}

// IPTables is of mode iptables.
type IPTables struct {
	MasqueradeBit      *int32          `json:"masqueradeBit" unless:"14"`
	MasqueradeAll      bool            `json:"masqueradeAll"`
	LocalhostNodePorts *bool           `json:"localhostNodePorts" unless:"true"`
	SyncPeriod         metav1.Duration `json:"syncPeriod" unless:"30s"`
	MinSyncPeriod      metav1.Duration `json:"minSyncPeriod" unless:"1s"`
}

// NFTables is of mode nftables.
type NFTables struct {
	MasqueradeBit *int32          `json:"masqueradeBit" unless:"14"`
	MasqueradeAll bool            `json:"masqueradeAll"`
	SyncPeriod    metav1.Duration `json:"syncPeriod" unless:"30s"`
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod" unless:"1s"`
}

// IPVS is of mode ipvs.
type IPVS struct {
	SyncPeriod    metav1.Duration `json:"syncPeriod" unless:"30s"`
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
	Scheduler     string          `json:"scheduler"`
	ExcludeCIDRs  []string        `json:"excludeCIDRs"`
	StrictARP     bool            `json:"strictARP"`
	TCPTimeout    metav1.Duration `json:"tcpTimeout"`
	TCPFinTimeout metav1.Duration `json:"tcpFinTimeout"`
	UDPTimeout    metav1.Duration `json:"udpTimeout"`
}

// Winkernel is of Windows.
type Winkernel struct {
	NetworkName           string `json:"networkName"`
	SourceVip             string `json:"sourceVip"`
	EnableDSR             bool   `json:"enableDSR"`
	RootHnsEndpointName   string `json:"rootHnsEndpointName"`
	ForwardHealthCheckVip bool   `json:"forwardHealthCheckVip"`
}

// DetectLocal goes with detectLocalMode.
type DetectLocal struct {
	BridgeInterface     string `json:"bridgeInterface"`
	InterfaceNamePrefix string `json:"interfaceNamePrefix"`
}

// Conntrack is what is set of the kernel's connection tracking.
type Conntrack struct {
	MaxPerCore            *int32           `json:"maxPerCore"`
	Min                   *int32           `json:"min"`
	TCPEstablishedTimeout *metav1.Duration `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   *metav1.Duration `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal          bool             `json:"tcpBeLiberal"`
	UDPTimeout            metav1.Duration  `json:"udpTimeout"`
	UDPStreamTimeout      metav1.Duration  `json:"udpStreamTimeout"`
}
