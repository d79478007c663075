// Package plan owns what a cluster.yaml means: Azure's network as it is made and as it changes, and what a node has (its object, its CNI
// configuration, its agent's flags). All of it is pure: values in, values out.
package plan
