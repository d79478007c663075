package pastedtext

import (
	"slices"
	"strings"
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
		var got []string
		for _, c := range splitCommands(line, false) {
			got = append(got, c.text)
		}
		if !slices.Equal(got, want) {
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
		"ip r d default":                                      true,
		"ip -4 ro fl table main":                              true,
		"ip ru d pref 5":                                      true,
		"ip r s table 5":                                      false,
		"ip a s eth0":                                         false,
		"ip route show table 5":                               false,
		"iptables -t nat -nvL":                                false,
	} {
		if got := concerns(command) != nil; got != want {
			t.Errorf("%s: got %v", command, got)
		}
	}
}

// TestNotesAreBounded shows that many or long lines that are left out do not fill the answer.
func TestNotesAreBounded(t *testing.T) {
	text := strings.Repeat("ip route del default via 10.0.0.1 # "+strings.Repeat("x", 5000)+"\n", 500)
	f, err := everywhere.parse("", []byte("-A FORWARD -j DROP\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, a := range f.Assumed {
		size += len(a.Text)
	}
	if size > 150_000 {
		t.Errorf("%d bytes of notes in %d", size, len(f.Assumed))
	}
	if unread := f.Account.Unread(); len(unread) != 500 {
		t.Errorf("%d lines not read, want 500", len(unread))
	}
}
