// Package lab is a whole cluster on this machine: it brings it up, keeps it up, changes it, says how it is, and takes it down.
//
// It owns the lab process: the list of parts (newLab) and what each does on this machine, the layout of /run/packetwalk/<lab>, the order in
// which the parts start, and the control socket that the command line talks to. What it decides stands elsewhere, without effects: what a
// cluster.yaml says (cluster) and means (plan), what AKS has in the API (manifests), which certificates are signed (signer).
//
// Nothing imports lab but cli; it must not import answer or walk. The lab process holds no part of the data path: it can be killed at any
// moment and what is established goes on; a new lab process for the same directory takes over what it finds.
package lab
