// Package cloud is the cloud provider that upstream's service controller (k8s.io/cloud-provider) drives: it turns Services of
// type LoadBalancer into front ends, rules, probes and back-end pools of the lab's load balancer, with the names and settings
// that cloud-provider-azure gives them. It must not import kernel.
package cloud
