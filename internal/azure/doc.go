// Package azure owns Azure's own view of a lab: vnet's network as the network resource provider's types (armnetwork), and the "az network"
// commands that show it, with the CLI's tables, queries and exit codes.
//
// It is pure: a network and arguments in, text and an exit code out. It must not import kernel.
package azure
