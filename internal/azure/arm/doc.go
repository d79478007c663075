// Package arm emulates Azure Resource Manager for a network: the network as resources in the shapes of Azure's SDK and back, reads and
// writes of resources, and the HTTP interface. All but the server is pure.
package arm
