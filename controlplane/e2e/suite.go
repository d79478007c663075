// Package e2e names what is built of Kubernetes' own end-to-end tests, all of it upstream's and unmodified: the suite (go test -c of the
// package below), the runner of its parallel processes (ginkgo) and the programs of its pods'
// images. The last two are in go.mod.
package e2e

import _ "k8s.io/kubernetes/test/e2e" // with its test files, which go.mod holds the dependencies of
