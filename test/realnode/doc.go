// Package realnode tests nodes with runtime containerd as users see them: by the packetwalk command, in a lab of its own. Their programs
// take minutes to build, so that the tests run only where make realnode has: make test-realnode runs them all, .ci/run the shorter ones.
package realnode
