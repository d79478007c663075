package cluster

// CalicoVersion is a minor release of Calico.
type CalicoVersion string

// The releases that the lab has. 3.27 is the last that writes its rules as the articles show them: the jump of nat POSTROUTING comes first,
// and the set of all pools is cali40all-ipam-pools. 3.31 is that of AKS with Kubernetes 1.35.
const (
	Calico327 CalicoVersion = "3.27"
	Calico331 CalicoVersion = "3.31"
)

// CalicoVersion returns the cluster's release of Calico, "" without Calico.
func (c *Cluster) CalicoVersion() CalicoVersion {
	switch {
	case c.Spec.Network.Policy != PolicyCalico:
		return ""
	case c.Spec.ServiceProxy.Rules == RulesCurrent:
		return Calico331
	}
	return Calico327
}
