package iptables

// networkNames are the names that iptables -L without -n shows for well-known addresses and networks (/etc/hosts, /etc/networks).
var networkNames = map[string]string{
	"localhost": "127.0.0.1", "loopback": "127.0.0.0", "link-local": "169.254.0.0", "base-address.mcast.net": "224.0.0.0",
	"ip6-localhost": "::1", "ip6-loopback": "::1",
}

// serviceNames are the names that iptables -L without -n shows for ports, and that people write: those of /etc/services that are usual on nodes.
var serviceNames = map[string]uint16{
	"tcpmux": 1, "echo": 7, "discard": 9, "ftp-data": 20, "ftp": 21, "ssh": 22, "telnet": 23, "smtp": 25, "time": 37, "domain": 53, "bootps": 67, "bootpc": 68, "tftp": 69,
	"http": 80, "kerberos": 88, "pop3": 110, "sunrpc": 111, "ntp": 123, "netbios-ns": 137, "netbios-dgm": 138, "netbios-ssn": 139,
	"imap2": 143, "imap": 143, "snmp": 161, "snmp-trap": 162, "bgp": 179, "ldap": 389, "https": 443, "microsoft-ds": 445, "submission": 587,
	"ldaps": 636, "domain-s": 853, "rsync": 873, "imaps": 993, "pop3s": 995, "ms-sql-s": 1433, "ms-sql-m": 1434, "mqtt": 1883, "nfs": 2049,
	"iscsi-target": 3260, "mysql": 3306, "ms-wbt-server": 3389, "amqps": 5671, "amqp": 5672, "postgresql": 5432, "mdns": 5353,
	"redis": 6379, "x11": 6000, "http-alt": 8080, "zabbix-agent": 10050, "zabbix-trapper": 10051,
}

// icmpNames and icmp6Names are the names that iptables -L without -n shows for types and codes, as iptables-save prints them
// (libxtables/xtables.h: xt_icmp_names; extensions/libxt_icmp.h).
var icmpNames = map[string]string{
	"any": "any", "echo-reply": "0", "destination-unreachable": "3", "network-unreachable": "3/0", "host-unreachable": "3/1",
	"protocol-unreachable": "3/2", "port-unreachable": "3/3", "fragmentation-needed": "3/4", "source-route-failed": "3/5",
	"network-unknown": "3/6", "host-unknown": "3/7", "network-prohibited": "3/9", "host-prohibited": "3/10",
	"TOS-network-unreachable": "3/11", "TOS-host-unreachable": "3/12", "communication-prohibited": "3/13",
	"host-precedence-violation": "3/14", "precedence-cutoff": "3/15", "source-quench": "4", "redirect": "5", "network-redirect": "5/0",
	"host-redirect": "5/1", "TOS-network-redirect": "5/2", "TOS-host-redirect": "5/3", "echo-request": "8", "router-advertisement": "9",
	"router-solicitation": "10", "time-exceeded": "11", "ttl-zero-during-transit": "11/0", "ttl-zero-during-reassembly": "11/1",
	"parameter-problem": "12", "ip-header-bad": "12/0", "required-option-missing": "12/1", "timestamp-request": "13",
	"timestamp-reply": "14", "address-mask-request": "17", "address-mask-reply": "18",
}

var icmp6Names = map[string]string{
	"destination-unreachable": "1", "no-route": "1/0", "communication-prohibited": "1/1", "beyond-scope": "1/2",
	"address-unreachable": "1/3", "port-unreachable": "1/4", "failed-policy": "1/5", "reject-route": "1/6", "packet-too-big": "2",
	"time-exceeded": "3", "ttl-zero-during-transit": "3/0", "ttl-zero-during-reassembly": "3/1", "parameter-problem": "4", "bad-header": "4/0",
	"unknown-header-type": "4/1", "unknown-option": "4/2", "echo-request": "128", "echo-reply": "129", "router-solicitation": "133",
	"router-advertisement": "134", "neighbour-solicitation": "135", "neighbor-solicitation": "135", "neighbour-advertisement": "136",
	"neighbor-advertisement": "136", "redirect": "137",
}

// tcpFlagNames are the flags of the tcp match in the order of their bits and of iptables-save.
var tcpFlagNames = []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG"}

// logLevels are syslog's, which -L without -n shows by name.
var logLevels = map[string]string{
	"emerg": "0", "panic": "0", "alert": "1", "crit": "2", "error": "3", "err": "3", "warn": "4", "warning": "4", "notice": "5", "info": "6",
	"debug": "7",
}
