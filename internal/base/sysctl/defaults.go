package sysctl

// Setting is one of IPv4's interface settings: net.ipv4.conf.LINK.NAME (Documentation/networking/ip-sysctl.rst).
type Setting struct{ Name, Value string }

// Defaults are the kernel's own values (net/ipv4/devinet.c: ipv4_devconf). forwarding comes first, because the kernel changes
// accept_redirects with it.
var Defaults = []Setting{
	{"forwarding", "0"},
	{"accept_local", "0"}, {"accept_redirects", "1"},
	{"arp_accept", "0"}, {"arp_announce", "0"}, {"arp_filter", "0"}, {"arp_ignore", "0"}, {"arp_notify", "0"},
	{"drop_gratuitous_arp", "0"}, {"drop_unicast_in_l2_multicast", "0"},
	{"ignore_routes_with_linkdown", "0"}, {"log_martians", "0"}, {"promote_secondaries", "0"}, {"proxy_arp", "0"}, {"proxy_arp_pvlan", "0"},
	{"route_localnet", "0"}, {"rp_filter", "0"}, {"secure_redirects", "1"}, {"send_redirects", "1"}, {"shared_media", "1"},
	{"src_valid_mark", "0"},
}

// Reset gives the network namespace of the calling thread the defaults, before it has links other than lo: links copy them when they are
// made. A new namespace copies the machine's values (net.core.devconf_inherit_init_net), which an administrator, a distribution or Docker
// may have changed. What has its value already is written, too: only then links without an address keep theirs when conf/default changes
// (net/ipv4/devinet.c: devinet_copy_dflt_conf).
func Reset() error {
	for _, link := range []string{"all", "default", "lo"} {
		for _, s := range Defaults {
			if err := write("net/ipv4/conf/"+link+"/"+s.Name, s.Value); err != nil {
				return err
			}
		}
	}
	return nil
}
