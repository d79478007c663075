package iptables

// networkNames are the names that iptables -L without -n shows for well-known addresses and networks (/etc/hosts, /etc/networks).
var networkNames = map[string]string{
	"localhost": "127.0.0.1", "loopback": "127.0.0.0", "link-local": "169.254.0.0", "base-address.mcast.net": "224.0.0.0",
	"ip6-localhost": "::1", "ip6-loopback": "::1",
}

// serviceNames are the names that iptables -L without -n shows for ports, and that people write: those of
// /etc/services that are usual on nodes.
var serviceNames = map[string]uint16{
	"tcpmux": 1, "echo": 7, "discard": 9, "ftp-data": 20, "ftp": 21, "ssh": 22, "telnet": 23, "smtp": 25, "time": 37, "domain": 53,
	"bootps": 67, "bootpc": 68, "tftp": 69,
	"http": 80, "kerberos": 88, "pop3": 110, "sunrpc": 111, "ntp": 123, "netbios-ns": 137, "netbios-dgm": 138, "netbios-ssn": 139,
	"imap2": 143, "imap": 143, "snmp": 161, "snmp-trap": 162, "bgp": 179, "ldap": 389, "https": 443, "microsoft-ds": 445, "submission": 587,
	"ldaps": 636, "domain-s": 853, "rsync": 873, "imaps": 993, "pop3s": 995, "ms-sql-s": 1433, "ms-sql-m": 1434, "mqtt": 1883, "nfs": 2049,
	"iscsi-target": 3260, "mysql": 3306, "ms-wbt-server": 3389, "amqps": 5671, "amqp": 5672, "postgresql": 5432, "mdns": 5353,
	"redis": 6379, "x11": 6000, "http-alt": 8080, "zabbix-agent": 10050, "zabbix-trapper": 10051,
}
