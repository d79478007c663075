package realnode

import "strings"

// hostsFile returns the text of an /etc/hosts: the names of localhost, lines such as "10.0.0.1\tname", and the names of IPv6's groups as Debian
// has them.
func hostsFile(lines ...string) string {
	return "127.0.0.1\tlocalhost\n" + strings.Join(append(lines, ""), "\n") + "::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n"
}
