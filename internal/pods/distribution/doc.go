// Package distribution assembles what images of distributions (ubuntu, debian, busybox, …) have: one directory with the files of this
// machine's Debian packages. Of the machine it has nothing else: only what a package's own list has, as the
// package brought it by dpkg's checksums; links are the packages' too, and lead to what is there. What packages' scripts make on each
// machine (accounts, certificates, alternatives, the time zone) is made anew.
//
// The package owns which packages these are and how they become a directory. It must not import Kubernetes or what runs containers.
package distribution
