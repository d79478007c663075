package cluster

// NodeOptions are options of the nodes' image, which today's nodes have.
type NodeOptions struct {
	// LocalDNS runs a DNS cache on each node ("az aks nodepool update --localdns-config"): pods ask 169.254.10.11, and the node itself
	// 169.254.10.10. It needs pods whose packets are routed by their node, so not mode bridge, and no policy engine. Simulated nodes have none.
	// Default false.
	LocalDNS bool `json:"localDNS,omitempty"`
	// IMDSRestriction keeps pods from the Instance Metadata Service, 169.254.169.254 ("az aks update --enable-imds-restriction"). Pods with
	// hostNetwork still reach it. It can be changed while the cluster runs. Default false.
	IMDSRestriction bool `json:"imdsRestriction,omitempty"`
}

// nodeOptions checks what goes with the options of the nodes' image.
func (v *validator) nodeOptions() {
	const path = "spec.nodeOptions"
	o, n := v.c.Spec.NodeOptions, v.c.Spec.Network
	if v.c.Spec.ServiceProxy.Rules != RulesCurrent {
		const remedy, why = "leave it out, or leave out serviceProxy.rules", "nodes of that time did not have it"
		if o.LocalDNS {
			v.errs.add(path+".localDNS", remedy, why)
		}
		if o.IMDSRestriction {
			v.errs.add(path+".imdsRestriction", remedy, why)
		}
	}
	if !o.LocalDNS {
		return
	}
	if n.Plugin == PluginAzure && n.Mode == ModeBridge {
		v.errs.add(path+".localDNS", "write network.mode: transparent", "with mode bridge, pods' packets to 169.254.10.11 leave the node")
	}
	if n.Plugin == PluginNone {
		v.errs.add(path+".localDNS", "leave it out", "with plugin none it is unknown whether pods reach their node's addresses")
	}
	if n.Policy != PolicyNone {
		v.errs.add(path+".localDNS", "leave it out, or write network.policy: none", "AKS has LocalDNS without policy %s only", n.Policy)
	}
}
