// Package preload keeps file systems of images that nodes have from their start, as nodes of AKS do: what containerd stores of them, unpacked,
// in a file that labs mount read-only. A node copies containerd's two small databases and mounts the rest, so that it pulls and unpacks
// none of these images.
package preload
