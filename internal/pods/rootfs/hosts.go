package rootfs

import "strings"

// Hosts is the text of an /etc/hosts: the names of localhost, and lines such as "10.0.0.1\tname".
func Hosts(lines ...string) string {
	return "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + strings.Join(append(lines, ""), "\n")
}
