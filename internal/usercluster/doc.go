// Package usercluster owns what packetwalk does on a cluster of others: one short-lived privileged pod on each node that is asked for, when it
// is asked for, the conversation with it over the API server's exec (usercluster/remote), and that everything is taken away again. It gives the
// cluster's nodes and pods as the origin of a capture, and as places for packets.
//
// What is made (objects.go): a namespace with a service account that has no rights, and in it a Job a node. Jobs end by their deadline and
// go by their time to live, also when this process is gone; the namespace is then taken away by a later run, or by [Cluster.Cleanup].
//
// The package only reads the cluster's other objects.
package usercluster
