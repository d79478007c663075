// Package connector is AKS's aci-connector-linux: a node without a machine, registered with the virtual-kubelet library, whose pods become
// container groups in Azure Container Instances. It knows Kubernetes on one side and Azure's interface (aci.Service) on the other, and
// keeps nothing: what it needs after a restart stands in the groups' tags.
//
// A pod that asks for what container groups do not have is refused with an event on the pod that says what and why.
package connector
