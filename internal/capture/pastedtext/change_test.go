package pastedtext

import (
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/snapshot"
)

// listed is all that is read in TestSettle, before or after a command.
const listed = `$ iptables-save
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -s 10.0.0.0/8 -o eth0 -j MASQUERADE
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
COMMIT
$ ip route
default via 192.0.2.1 dev eth0
`

// TestSettle: a command that may change state has no effect on the answer if all of that state is listed below, or nothing of it above.
func TestSettle(t *testing.T) {
	changing := []string{"./fw.sh", "sudo bash fw.sh", "docker network create web", "docker -H tcp://h network create web", "netplan apply", "nmcli con up eth0", "ifdown eth1",
		"wg-quick up wg0", "systemctl restart docker", "service firewalld stop", "kubectl delete netpol web", "ufw enable", "firewall-cmd --reload", "unknown-program --fix",
		"curl -s https://x/install | sudo sh", "nsenter -t 1 -n firewall-setup", "ssh node-1 ./setup", "su -c 'netplan apply'", "docker exec web ./setup", "reboot", "cd /root && ./setup", "ansible-playbook fw.yml", "echo ok; ./fw.sh", "for i in a b; do ./fw.sh $i; done", "true && netplan apply", "iptables -F", "iptables -t nat -D POSTROUTING 1",
		"ip route del default", "ip r f table main", "nft flush ruleset", "iptables-restore -n < rules", "ip link set eth0 down", "ip l s eth0 down"}
	for _, command := range changing {
		for _, form := range []string{"$ " + command, "# " + command, "root@n:~# " + command} {
			if unread := unreadLines(t, form+"\n"+listed); unread != nil {
				t.Errorf("%s above: lines %v not read", form, unread)
			}
			if form[0] == '#' && !strings.HasPrefix(command, "./") && !prompted(form) {
				continue // a comment
			}
			after := strings.Count(listed, "\n") + 1
			if unread := unreadLines(t, listed+form+"\n"); !slices.Equal(unread, []int{after}) {
				t.Errorf("%s below: lines %v not read", form, unread)
			}
			if unread := unreadLines(t, listed+form+"\n"+listed); unread != nil {
				t.Errorf("%s between: lines %v not read", form, unread)
			}
		}
	}
	for _, command := range []string{"cat ./fw.sh", "ls /etc", "docker ps", "docker network ls", "docker exec web ip addr", "kubectl -n kube-system get pods", "systemctl status docker",
		"iptables -C FORWARD -j DROP", "iptables -L -n -v", "ufw status verbose", "firewall-cmd --list-all", "nmcli dev show", "wg show", "ip -6 neigh", "ip link show", "ip l ls",
		"conntrack -S", "sysctl net.ipv4.ip_forward", "tcpdump -ni eth0 'tcp or udp'", "iptables-save | grep -E 'a|b'", "time sudo ls", "ssh node-1", "sudo -i", "su -", "sudo su", "kubectl exec -it web -- bash", "docker exec web curl x", "nsenter -t 1 -n ip addr", "ssh node-1 sudo ls", "service iptables save", "apt-get update", "bash", "nft list ruleset"} {
		if unread := unreadLines(t, listed+"$ "+command+"\n"); unread != nil {
			t.Errorf("%s: lines %v not read", command, unread)
		}
	}
}

func prompted(line string) bool {
	_, is := commandOf(line)
	return is
}

func unreadLines(t *testing.T, text string) []int {
	t.Helper()
	f, err := everywhere.parse("", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f.Account.Unread()
}

// TestSettleStates: only a listing of all of the state that a command may change settles it.
func TestSettleStates(t *testing.T) {
	const (
		s, nat  = "$ iptables -S\n-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n", "$ iptables -t nat -S\n-P PREROUTING ACCEPT\n-P INPUT ACCEPT\n-P OUTPUT ACCEPT\n-P POSTROUTING ACCEPT\n"
		r       = "$ ip route\ndefault via 192.0.2.1 dev eth0\n"
		r5      = "$ ip route show table 5\ndefault via 192.0.2.1 dev eth1\n"
		all     = "$ ip route show table all\ndefault via 192.0.2.1 dev eth0\ndefault via 192.0.2.1 dev eth1 table 5\n"
		rules   = "$ ip rule\n0:\tfrom all lookup local\n100:\tfrom all fwmark 0x1 lookup 5\n32766:\tfrom all lookup main\n"
		addr    = "$ ip addr\n2: eth0: <UP,LOWER_UP> mtu 1500\n    inet 192.0.2.10/24 scope global eth0\n"
		down    = "$ ip addr\n2: eth0: <BROADCAST> mtu 1500\n    inet 192.0.2.10/24 scope global eth0\n"
		link    = "$ ip link\n2: eth0: <UP,LOWER_UP> mtu 1500\n"
		nft     = "$ nft list ruleset\ntable ip a {\n}\n"
		nftTwo  = "$ nft list table ip b\ntable ip b {\n}\n"
		forward = "$ iptables -S FORWARD\n-P FORWARD ACCEPT\n"
	)
	for _, c := range []struct {
		name, text string
		unread     int // its line that is not read; 0 for none
	}{
		{"another table is listed", s + "$ iptables -D FORWARD 1\n" + nat, 5},
		{"another table is changed first", s + "$ iptables -t nat -F\n" + nat, 0},
		{"one chain is listed", s + "$ iptables -F\n" + forward, 5},
		{"through a program", s + "$ iptables -F\n" + strings.Replace(s, "-S", "-S | cat", 1), 5},
		{"of IPv6", s + "$ iptables -F\n" + strings.Replace(s, "iptables", "ip6tables", 1), 5},
		{"changed on another host", strings.ReplaceAll(s, "$ ", "a@one:~$ ") + "a@two:~$ iptables -F\n", 0},
		{"another table of routes", r + "$ ip route del default\n" + r5, 3},
		{"all tables of routes", r + r5 + "$ ip route del default table 5\n" + all, 0},
		{"main alone", all + "$ ip route del default table 5\n" + r, 4},
		{"rules", rules + "$ ip rule del pref 100\n" + rules, 0},
		{"rules, and routes are listed", rules + "$ ip rule del pref 100\n" + r, 5},
		{"addresses, and links are listed", addr + "$ ip addr del 192.0.2.10/24 dev eth0\n" + link, 4},
		{"addresses and routes", addr + r + "$ ip addr del 192.0.2.10/24 dev eth0\n" + addr, 6},
		{"addresses and routes listed", addr + r + "$ ip addr del 192.0.2.10/24 dev eth0\n" + addr + r, 0},
		{"a link that is down is set up", down + "$ ip link set eth0 up\n", 4},
		{"a link that is up is set up", addr + "$ ip link set eth0 up\n", 0},
		{"nft", nft + "$ nft delete table ip a\n" + nft, 0},
		{"nft, and one table is listed", nft + "$ nft delete table ip a\n" + nftTwo, 4},
		{"iptables below a table of nft", nft + "$ iptables -F\n" + s, 0},
		{"iptables below its table by nft", strings.Replace(nft, "ip a", "ip filter", 1) + "$ iptables -F\n" + s, 4},
		{"all is changed, and some is listed", s + r + "$ ./fw.sh\n" + s, 7},
		{"all is changed, and all is listed", s + r + "$ ./fw.sh\n" + s + r, 0},
		{"all is changed before, in prose", "First I ran ./fw.sh here.\n" + s, 0},
		{"all is changed since, in prose", s + "Then I ran netplan apply.\n", 5},
		{"all is changed since, without a prompt", s + "docker network create web\n", 5},
		{"settings that are not shown", s + "$ sysctl -p\n" + s, 5},
		{"settings that are shown below", s + "$ sysctl -p\nnet.ipv4.ip_forward = 1\n", 0},
		{"lines are left out of the listing", r + "$ ip route del default\n" + r + "...\n", 3},
		{"nothing of it is read", s + "$ ip route del default\n", 5},
		{"two changes, of which one is settled", s + r + "$ iptables -F; ip route del default\n" + s, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			unread := unreadLines(t, c.text)
			if strings.HasSuffix(c.text, "...\n") { // which itself is not read
				unread = unread[:len(unread)-1]
			}
			if c.unread == 0 && unread != nil || c.unread > 0 && !slices.Equal(unread, []int{c.unread}) {
				t.Errorf("lines %v not read, want %d:\n%s", unread, c.unread, c.text)
			}
		})
	}
}

// TestChangesOfAFamily: a command that changes one family's state cannot change what happens to packets of the other.
func TestChangesOfAFamily(t *testing.T) {
	for command, want := range map[string][2]bool{
		"ip -6 route del default":   {false, true},
		"ip route del default":      {true, false},
		"ip6tables -F":              {false, true},
		"ip addr flush dev eth0":    {true, true},
		"ssh root@10.0.0.1 ./fw.sh": {true, true},
		"ip route del fe80::/64":    {false, true},
	} {
		f, err := everywhere.parse("", []byte(listed+"$ ip -6 route\nfe80::/64 dev eth0\n$ "+command+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{len(f.Account.MayChange(false)) > 0, len(f.Account.MayChange(true)) > 0}; got != want {
			t.Errorf("%s: changes IPv4 and IPv6: %v", command, got)
		}
	}
}

// TestEarlierState: a listing of all of a state replaces what was read of it above, whatever shows it.
func TestEarlierState(t *testing.T) {
	f, err := everywhere.parse("", []byte(`$ nft list ruleset
table ip a {
}
$ ip rule add from 10.0.0.5 blackhole
$ ip addr
2: eth0: <UP,LOWER_UP> mtu 1500
    inet 192.0.2.10/24 scope global eth0
$ ip link
2: eth0: <UP,LOWER_UP> mtu 1500
$ nft list ruleset
table ip b {
}
$ ip rule
0:	from all lookup local
32766:	from all lookup main
`))
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, b := range f.Blocks {
		shown = append(shown, b.lines()...)
	}
	want := []string{"2: eth0: <UP,LOWER_UP> mtu 1500", "inet 192.0.2.10/24 scope global eth0", "2: eth0: <UP,LOWER_UP> mtu 1500", "table ip b {", "}",
		"0: from all lookup local", "32766: from all lookup main"}
	if !slices.Equal(shown, want) {
		t.Errorf("got %q", shown)
	}
	for i, as := range map[int]string{1: "an earlier state", 3: "an earlier state", 10: string(NFTText)} {
		if line := f.Account.Account[i]; line.As != as || (as == "an earlier state") != (line.Fate == snapshot.LineNoEffect) {
			t.Errorf("line %d: %+v", i+1, line)
		}
	}
}

// TestInserted: a command inserts into what was listed before it.
func TestInserted(t *testing.T) {
	_, saved := tablesOf(t, "$ iptables -S FORWARD\n-P FORWARD ACCEPT\n-A FORWARD -s 10.0.0.1/32 -j ACCEPT\n-A FORWARD -j ACCEPT\n"+
		"$ iptables -I FORWARD 2 -s 10.0.0.2/32 -j DROP\n$ iptables -I FORWARD -s 10.0.0.3/32 -j DROP\n$ iptables -A FORWARD -s 10.0.0.4/32 -j DROP\n")
	const want = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.0.0.3/32 -j DROP\n-A FORWARD -s 10.0.0.1/32 -j ACCEPT\n-A FORWARD -s 10.0.0.2/32 -j DROP\n" +
		"-A FORWARD -j ACCEPT\n-A FORWARD -s 10.0.0.4/32 -j DROP\nCOMMIT\n"
	if saved != want {
		t.Errorf("got\n%s", saved)
	}
}
