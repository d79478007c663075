// Package az owns Azure's own view of a lab: vnet's network as the network resource provider's types (armnetwork), its VMs, container
// groups and managed cluster, and the commands of "az" (network, vm, container, aks) that show and change them, with the CLI's tables,
// queries and exit codes.
//
// It is pure: a [Lab] and arguments in, text and an exit code out; what changes something calls what the Lab has for it.
package az
