// Package isolation runs programs apart from the machine: in other namespaces, with other roots and fewer rights.
//
//   - [HostCommand] is a command of the user on a host of a lab, as ssh(1) runs it.
//   - [Server] is a host's server.
//   - [NodeArgs] is for programs that a lab keeps running on a node.
//
// packetwalk-app becomes each of them by [Main]. What makes a node itself uses the same parts: [Start], the change of the root, /dev, and
// [LimitNode]. Processes of a node are there once a node, so the package must not import anything large: nothing of Kubernetes, no net/http.
package isolation
