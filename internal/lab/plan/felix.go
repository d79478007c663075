package plan

// Ports of felix: its health at 127.0.0.1 and its Prometheus metrics (felix/config/config_params.go).
const (
	FelixHealthPort  = 9099
	FelixMetricsPort = 9091
)

// FelixEnvironment returns the variables that configure calico-felix on a node, as AKS's manifests do: Azure CNI's interfaces, packets of
// pods to their node accepted, no overlay (felix/config/config_params.go). The backend is "NFT" or "Legacy". Felix is built without cgo, so
// it must not clean up its BPF load balancer.
func FelixEnvironment(node, kubeconfig, backend string) []string {
	return []string{
		"KUBECONFIG=" + kubeconfig, "DATASTORE_TYPE=kubernetes", "FELIX_DATASTORETYPE=kubernetes", "FELIX_FELIXHOSTNAME=" + node,
		"FELIX_INTERFACEPREFIX=azv", "FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT", "FELIX_IPTABLESBACKEND=" + backend,
		"FELIX_IPV6SUPPORT=false", "FELIX_IPINIPENABLED=false", "FELIX_VXLANENABLED=false", "FELIX_USAGEREPORTINGENABLED=false",
		"FELIX_LOGFILEPATH=none", "FELIX_HEALTHENABLED=true", "FELIX_HEALTHHOST=127.0.0.1", "FELIX_PROMETHEUSMETRICSENABLED=true",
		"FELIX_DebugSkipCTLBCleanup=true", "FELIX_ENDPOINTSTATUSPATHPREFIX=none",
	}
}
