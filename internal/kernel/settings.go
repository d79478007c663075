package kernel

// interfaceDefaults are the kernel's own values of IPv4's interface settings (net/ipv4/devinet.c: ipv4_devconf). A new namespace copies the
// machine's values (net.core.devconf_inherit_init_net), which an administrator, a distribution or Docker may have changed. forwarding comes
// first, because the kernel changes accept_redirects with it.
var interfaceDefaults = []struct{ name, value string }{
	{"forwarding", "0"},
	{"accept_local", "0"}, {"accept_redirects", "1"},
	{"arp_accept", "0"}, {"arp_announce", "0"}, {"arp_filter", "0"}, {"arp_ignore", "0"}, {"arp_notify", "0"},
	{"drop_gratuitous_arp", "0"}, {"drop_unicast_in_l2_multicast", "0"},
	{"ignore_routes_with_linkdown", "0"}, {"log_martians", "0"}, {"promote_secondaries", "0"}, {"proxy_arp", "0"}, {"proxy_arp_pvlan", "0"},
	{"route_localnet", "0"}, {"rp_filter", "0"}, {"secure_redirects", "1"}, {"send_redirects", "1"}, {"shared_media", "1"},
	{"src_valid_mark", "0"},
}

// resetSettings gives a new namespace the kernel's own settings, so that a lab is the same on every machine.
func (n *Namespace) resetSettings() error {
	var all []Sysctl
	for _, link := range []string{"all", "default", "lo"} {
		for _, d := range interfaceDefaults {
			all = append(all, Sysctl{Key: "net/ipv4/conf/" + link + "/" + d.name, Value: d.value})
		}
	}
	return n.SetSysctls(all...)
}
