package pastedtext

import (
	"slices"
	"testing"
)

func TestSplitCommands(t *testing.T) {
	for line, want := range map[string][]string{
		"iptables -F; iptables -P FORWARD DROP":                 {"iptables -F", "iptables -P FORWARD DROP"},
		"ip link set a up && ip route del default;":             {"ip link set a up", "ip route del default"},
		`iptables -A X -m comment --comment "a; b && c" -j Y`:   {`iptables -A X -m comment --comment "a; b && c" -j Y`},
		`nft add chain ip nat p '{ type nat hook output; }'`:    {`nft add chain ip nat p '{ type nat hook output; }'`},
		`nft add chain ip nat p { type nat hook output \; }`:    {`nft add chain ip nat p { type nat hook output \; }`},
		"nft add chain ip nat p { type nat hook output ; } ; x": {"nft add chain ip nat p { type nat hook output ; }", "x"},
		";;": nil,
	} {
		if got := splitCommands(line); !slices.Equal(got, want) {
			t.Errorf("%q: got %q", line, got)
		}
	}
}

// TestChanges shows which commands are known to change what decides about packets.
func TestChanges(t *testing.T) {
	for command, want := range map[string]bool{
		"sudo sh -c 'echo 0 > /proc/sys/net/ipv4/ip_forward'": true,
		"echo 1 | sudo tee -a /proc/sys/net/ipv4/ip_forward":  true,
		"iptables-save | grep -v DROP | iptables-restore":     true,
		"iptables-legacy-restore < rules":                     true,
		"systemctl stop firewalld":                            true,
		"service iptables restart":                            true,
		"systemctl status firewalld":                          false,
		"systemctl restart sshd":                              false,
		"ip route show table 5":                               false,
		"iptables -t nat -nvL":                                false,
	} {
		if got := changes.MatchString(command); got != want {
			t.Errorf("%s: got %v", command, got)
		}
	}
}
