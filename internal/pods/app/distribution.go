package app

import (
	"path/filepath"
	"slices"
	"strings"
)

// Distribution are the machine's files and directories that stand for the distribution of an image: programs and libraries, and what finds
// names, services, certificates and time zones. A container sees these of the machine and nothing else. A directory stands for all that is
// below it.
var Distribution = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
	"/etc/alternatives", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/gai.conf", "/etc/host.conf", "/etc/ld.so.cache",
	"/etc/ld.so.conf",
	"/etc/ld.so.conf.d", "/etc/localtime", "/etc/nsswitch.conf", "/etc/protocols", "/etc/services", "/etc/ssl/certs", "/etc/timezone",
}

// InDistribution splits a path without links and dots into the entry of Distribution that it is or is below, and the rest, "." for none.
func InDistribution(path string) (entry, below string, ok bool) {
	i := slices.IndexFunc(Distribution, func(d string) bool { return path == d || strings.HasPrefix(path, d+"/") })
	if i < 0 {
		return "", "", false
	}
	below, err := filepath.Rel(Distribution[i], path)
	return Distribution[i], below, err == nil
}
