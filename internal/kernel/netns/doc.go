// Package netns makes and enters network namespaces, and brings their links, addresses, routes, policy rules, neighbours and sysctls to a
// desired state. It reads and deletes their connections, and finds the processes that live in them.
//
// Everything it does happens inside a [Namespace] that it was given: nothing here changes the namespace that the process was started in.
package netns
