// Package walks proves walks on a running cluster: every kind of sender to every kind of destination, with the kernel's own trace laid
// beside it. It drives the lab by the packetwalk command alone and must not import the project's packages.
package walks
