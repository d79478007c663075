// Package manifests owns the objects that AKS has in a cluster's API: the cluster's DNS, addons, the ip-masq-agent, Calico's resources, the
// virtual node's connector; and how they get there, as AKS's add-on manager brings them. The objects are pure: text, one document each.
package manifests
