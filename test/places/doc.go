// Package places tests labs in a chroot and in privileged containers, which do not have a machine's root and control groups.
package places
